"""Whether a program's output is the expected one: token by token, numbers as numbers.

White space separates and says nothing else, so "1 \\n2" is "1\\n2". Integers compare exactly whatever their length.
Where the expected number has a point or an exponent, it is met to within 1e-6, absolute or relative, the usual rule of
contests; the published tests state no other.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

TOLERANCE = 1e-6

_NUMBER = re.compile(rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,6})?")


def same_output(expected: bytes, found: bytes) -> bool:
    """Whether two texts are equal by token."""
    wanted, got = expected.split(), found.split()
    return len(wanted) == len(got) and all(a == b or _same_number(a, b) for a, b in zip(wanted, got, strict=True))


def _same_number(expected: bytes, found: bytes) -> bool:
    if not _NUMBER.fullmatch(expected) or not _NUMBER.fullmatch(found):
        return False
    a, b = Decimal(expected.decode()), Decimal(found.decode())
    if a == b:
        return True
    return not expected.lstrip(b"+-").isdigit() and _close(float(a), float(b))


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE) and math.isfinite(b)


def same_value(expected: str, found: bytes) -> bool:
    """Whether two JSON texts hold equal values: 2 equals 2.0; an expected fraction is met to within the tolerance."""
    try:
        return _same(json.loads(expected), json.loads(found))
    except (ValueError, RecursionError):  # such as an integer with more digits than Python reads
        return expected.encode() == found.strip()


def _same(expected: Any, found: Any) -> bool:
    if isinstance(expected, list):
        if not isinstance(found, list) or len(expected) != len(found):
            return False
        return all(_same(a, b) for a, b in zip(expected, found, strict=True))
    if isinstance(expected, dict):
        if not isinstance(found, dict) or expected.keys() != found.keys():
            return False
        return all(_same(value, found[key]) for key, value in expected.items())
    if isinstance(expected, float) and isinstance(found, int | float):
        return expected == found or (abs(found) < 1e300 and _close(expected, float(found)))
    return bool(expected == found)
