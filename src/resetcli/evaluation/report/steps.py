"""The trace of a sample, read back and added up by step (design 1.3)."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError


@dataclass
class Step:
    """``entropy``: mean over the step's tokens, in nats. ``uncertain``, ``cooled``: tokens in an uncertain step by
    the policy, and drawn at T_low (None where the policy knows no T_low). ``text``: how the step begins."""

    tokens: int
    entropy: float
    uncertain: int
    cooled: int | None
    text: str


@dataclass(frozen=True)
class StepTrace:
    """Of one sample: the trace's header, its request's name, its steps."""

    header: dict[str, Any]
    request: str
    steps: list[Step]


TEXT_KEPT = 120

MOST_NATS = 1e6
"""More is no entropy: that of a vocabulary is its size's logarithm at most."""


def read_steps(path: Path) -> StepTrace | None:
    """The steps of the one request in the trace file ``path``; None if it holds no token or no entropies.

    Where the policy knows no steps they are found in the text: a token ends one if after it the text holds a blank
    line ("\\n\\n", "\\r\\n" read as "\\n") that was not complete before it.

    Raises:
        ResetError: unreadable, or no trace.
    """
    steps: list[Step] = []
    try:
        with open(path, encoding="utf-8") as stream:
            header = json.loads(next(stream, "null"))
            if not isinstance(header, dict) or header.get("trace") != 1:
                raise ValueError("no header of a trace in the first line")
            low = header["policy"]["t_low"]
            if (tau_0 := header["policy"].get("tau_0")) is not None:
                _nats(tau_0)
            request, tail, ended = "", "", True
            for line in stream:
                token = json.loads(line)
                request = token["request"]
                if token["entropy"] is None:
                    return None
                if ended if token["boundary"] is None else token["boundary"]:
                    steps.append(Step(0, 0.0, 0, None if low is None else 0, ""))
                _add(steps[-1], token, low)
                whole = (tail + token["text"]).replace("\r\n", "\n")
                ended, tail = _blank_lines(whole) > _blank_lines(tail), whole[-2:]
    except OSError as exc:
        raise ResetError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as exc:
        raise ResetError(f"{path} is not a trace ({exc}); delete it") from exc
    for step in steps:
        step.entropy /= step.tokens
    return StepTrace(header, request, steps) if steps else None


def _add(step: Step, token: dict[str, Any], low: float | None) -> None:
    step.tokens += 1
    step.entropy += _nats(token["entropy"])
    step.uncertain += bool(token["uncertain"])
    if step.cooled is not None and low is not None and token["temperature"] is not None:
        step.cooled += token["temperature"] == round(low, 6)
    if len(step.text) < TEXT_KEPT:
        step.text = (step.text + token["text"])[:TEXT_KEPT]


def _nats(value: Any) -> float:
    """``value``, if an entropy can be that.

    Raises:
        ValueError: it cannot; NaN and infinities cannot either.
    """
    if not isinstance(value, int | float) or not abs(value) < MOST_NATS:
        raise ValueError(f"{value!r} is no entropy in nats")
    return value


def _blank_lines(text: str) -> int:
    """Line feeds that follow a line feed (overlaps count)."""
    return sum(a == b == "\n" for a, b in itertools.pairwise(text))
