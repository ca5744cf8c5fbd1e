"""Names and ranges that settings, options and ``reset_config.json`` share, so that all refuse the same values.

A temperature is 0 (argmax) or 0.01 and up: what lies between only overflows float32 logits on the way to argmax.
"""

from __future__ import annotations

import math
from typing import Any

from resetcli.base.errors import UsageError

POLICIES = ("reset", "fixed", "fixed-threshold", "sliding-window", "step-relative", "uniform-low", "greedy")
"""Decoding policies of design 1.3 (ReSET, arXiv 2606.13233, and its baselines)."""

ESTIMATORS = ("hybrid", "causal", "window", "ema")
"""Step-entropy estimators of design 1.3."""

MAX_WINDOW = 65_536
"""Entries of the window kept per request, 8 bytes each."""

MAX_TAU = 100.0
"""Nats; no vocabulary reaches it (ln V < 20)."""

MAX_TEMPERATURE = 10.0


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value)


def number(name: str, value: Any) -> float:
    """``value`` as a finite float.

    Raises:
        UsageError: not a number (bool counts as none), NaN or infinite; the message begins with ``name``.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} must be a number, not {_shown(value)}")
    if not math.isfinite(value):
        raise UsageError(f"{name} must be a finite number, not {value}")
    return float(value)


def integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """``value`` as an int in [low, high].

    Raises:
        UsageError: not a whole number or out of range; the message begins with ``name``.
    """
    span = f"a whole number from {low} to {high}" if high is not None else f"a whole number of at least {low}"
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise UsageError(f"{name} must be {span}, not {_shown(value)}")
    return value


def check_tau_0(name: str, value: Any) -> float:
    """A threshold in nats, 0 to MAX_TAU; raises UsageError by name."""
    tau = number(name, value)
    if not 0.0 <= tau <= MAX_TAU:
        raise UsageError(f"{name} must be between 0 and {MAX_TAU:g} nats, not {value}")
    return tau


def check_temperature(name: str, value: Any) -> float:
    """0 (argmax) or 0.01 to MAX_TEMPERATURE; raises UsageError by name."""
    temperature = number(name, value)
    if temperature != 0.0 and not 0.01 <= temperature <= MAX_TEMPERATURE:
        raise UsageError(f"{name} must be 0 (argmax) or between 0.01 and {MAX_TEMPERATURE:g}, not {value}")
    return temperature


def check_window(name: str, value: Any) -> int:
    """Window length in tokens, 1 to MAX_WINDOW; raises UsageError by name."""
    return integer(name, value, 1, MAX_WINDOW)


def check_top_p(name: str, value: Any) -> float:
    """Nucleus mass in (0, 1]; raises UsageError by name."""
    top_p = number(name, value)
    if not 0.0 < top_p <= 1.0:
        raise UsageError(f"{name} must be above 0 and at most 1, not {value}")
    return top_p


def check_min_p(name: str, value: Any) -> float:
    """Share of the top probability in [0, 1]; raises UsageError by name."""
    min_p = number(name, value)
    if not 0.0 <= min_p <= 1.0:
        raise UsageError(f"{name} must be between 0 and 1, not {value}")
    return min_p


def check_order(low_name: str, low: float, high_name: str, high: float) -> None:
    """T_low may not lie above T_high; raises UsageError naming both."""
    if low > high:
        raise UsageError(f"{low_name} {low:g} must not be above {high_name} {high:g}")
