"""Tests of a LiveCodeBench problem: decoded from what the authors publish, without trusting it.

Private tests come as base64 of zlib of a pickle of one string of JSON, or as that JSON in plain. A pickle is a
program: it may name any function and call it while it is read. So its opcodes are looked over first (a pickle of one
string has five), then it is read by an unpickler that finds no class at all, and only a text comes out. Sizes are
limited at every step, because a few kilobytes can unfold to gigabytes.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import pickletools
import zlib
from dataclasses import dataclass
from typing import Any, Literal

LARGEST = 512 << 20
"""Bytes that the decoded tests of one problem may have. The largest published are some tens of MB."""

_STRINGS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_HARMLESS = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "STOP", *_STRINGS}
_MOST_OPCODES = 16

# What reading a broken pickle raises.
_DAMAGED = (
    pickle.UnpicklingError, ValueError, EOFError, LookupError, TypeError, AttributeError, OverflowError, MemoryError
)  # fmt: skip

Kind = Literal["stdin", "functional"]


class BadTests(ValueError):
    """Tests that cannot be used; the message says why, the caller where."""


@dataclass(frozen=True)
class Case:
    """One test. "stdin": text in, text out. "functional": a JSON value an argument a line in, one JSON value out."""

    input: str
    output: str
    kind: Kind


class _NoGlobals(pickle.Unpickler):
    """Reads plain values only."""

    def find_class(self, module: str, name: str) -> Any:
        raise BadTests(f"its pickle names the global {module}.{name}, which could run code; only a text is read")

    def persistent_load(self, pid: Any) -> Any:
        raise BadTests("its pickle refers to something outside itself; only a text is read")


def unpickle_text(data: bytes, largest: int = LARGEST) -> str:
    """The one string that a pickle holds.

    Raises:
        BadTests: it names a global, holds anything but one string, is damaged or too large.
    """
    if len(data) > largest:
        raise BadTests(f"its pickle has over {largest} bytes")
    try:
        for number, (code, argument, _) in enumerate(pickletools.genops(data)):
            if code.name in ("GLOBAL", "INST"):
                raise BadTests(
                    f"its pickle names the global {str(argument).replace(' ', '.')}, which could run code; only a text "
                    "is read"
                )
            # A far memo slot would make the unpickler allocate a table up to it.
            far = code.name == "PUT" and int(argument or 0) > 255
            if code.name not in _HARMLESS or number >= _MOST_OPCODES or far:
                raise BadTests(f"its pickle is not of one text (opcode {code.name}), so it is not read")
        text = _NoGlobals(io.BytesIO(data)).load()
    except BadTests:
        raise
    except _DAMAGED as exc:
        raise BadTests(f"its pickle is damaged ({exc or type(exc).__name__})") from exc
    if not isinstance(text, str):
        raise BadTests(f"its pickle holds a {type(text).__name__}, not a text")
    return text


def decode_cases(text: str, largest: int = LARGEST) -> list[Case]:
    """The tests in a published field: plain JSON, or base64 of zlib of a pickle of JSON.

    Raises:
        BadTests: it is neither, or a test lacks something.
    """
    if not text.lstrip().startswith("["):
        try:
            packed = base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError) as exc:
            raise BadTests(f"its tests are neither a JSON list nor base64 ({exc})") from exc
        text = unpickle_text(_inflate(packed, largest), largest)
    elif len(text) > largest:
        raise BadTests(f"its tests have over {largest} characters")
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise BadTests(f"its tests are not valid JSON ({exc})") from exc
    if not isinstance(rows, list):
        raise BadTests("its tests are no JSON list")
    return [_case(row, number) for number, row in enumerate(rows, 1)]


def _inflate(packed: bytes, largest: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, largest + 1)
    except zlib.error as exc:
        raise BadTests(f"its tests cannot be decompressed ({exc})") from exc
    if len(data) > largest:
        raise BadTests(f"its tests have over {largest} bytes when decompressed")
    if not stream.eof:
        raise BadTests("its compressed tests are cut off")
    return data


def _case(row: Any, number: int) -> Case:
    if not isinstance(row, dict):
        raise BadTests(f"its test {number} is no JSON object")
    for key in ("input", "output"):
        if not isinstance(row.get(key), str):
            raise BadTests(f"its test {number} has no '{key}' (a text)")
    kind = row.get("testtype")
    if kind not in ("stdin", "functional"):
        raise BadTests(f"its test {number} has 'testtype' {json.dumps(kind)}, neither stdin nor functional")
    if kind == "functional":
        try:
            for line in [*row["input"].split("\n"), row["output"]]:
                json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise BadTests(f"its test {number} is functional, but not of JSON values ({exc})") from exc
    return Case(row["input"], row["output"], kind)
