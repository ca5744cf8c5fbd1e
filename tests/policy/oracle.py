"""The policies of design 1.3 as a person would write them: one request, whole lists, Python integers and fractions.

Shares nothing with ``resetcli.policy``: entropies are kept in full, every mean is taken anew from the list, and
boundaries are found in the text itself. (``ema`` alone is float arithmetic, as the design says.)
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


def blank_lines(data: bytes) -> int:
    """How often a blank line is complete in the text: "\\n\\n" with overlaps, "\\r\\n" read as "\\n"."""
    text = data.replace(b"\r\n", b"\n")
    return sum(text[i : i + 2] == b"\n\n" for i in range(len(text)))


def mean(units: list[int]) -> Fraction:
    return Fraction(sum(units), len(units) * 2**22)


@dataclass
class Decision:
    entropy: Fraction
    step: int
    boundary: bool
    step_entropy: Fraction | float | None
    global_mean: Fraction | None
    uncertain: bool | None
    tau: Fraction | float | None
    temperature: float


class Oracle:
    """One request under one policy."""

    def __init__(self, name: str, estimator: str, tau_0: float, t_low: float, t_high: float, window: int) -> None:
        self.name, self.estimator, self.window = name, estimator, window
        self.tau_0, self.t_low, self.t_high = Fraction(tau_0), t_low, t_high
        self.seen: list[int] = []  # entropies in units of 2^-22 nat
        self.in_step: list[int] = []
        self.text = b""
        self.step = 0
        self.ema: float | None = None

    def _estimate(self, own: Fraction) -> Fraction | float:
        if self.estimator == "ema":
            return float(own) if self.ema is None else self.ema
        if self.estimator == "causal":
            values = self.in_step
        elif self.estimator == "window" or len(self.in_step) < self.window:
            values = self.seen[-self.window :]
        else:
            values = self.in_step
        return mean(values) if values else own

    def next(self, entropy: float, last: bytes | None) -> Decision:
        """``last``: the bytes of the token before this one, None for the first."""
        units = round(Fraction(entropy) * 2**22)
        own = Fraction(units, 2**22)
        boundary = last is None
        if last is not None:
            boundary = blank_lines(self.text + last) > blank_lines(self.text)
            self.text += last
            if boundary:
                self.step += 1
                self.in_step = []
        estimate = self._estimate(own)
        total = mean(self.seen) if self.seen else own
        # With nothing before it, the global mean is the step entropy, which is then H_t.
        if self.estimator == "ema":
            uncertain = estimate > float(total)
        else:
            uncertain = estimate > total
        recent = self.seen[-self.window :]
        sliding = mean(recent) if recent else own
        tau: Fraction | float | None = {
            "reset": estimate if uncertain else self.tau_0,
            "fixed-threshold": self.tau_0,
            "sliding-window": sliding,
            "step-relative": estimate,
            "uniform-low": estimate if uncertain else None,
        }[self.name]
        low = True if tau is None else (float(own) < tau if isinstance(tau, float) else own < tau)
        steps = self.name in ("reset", "step-relative", "uniform-low")
        sat = self.name in ("reset", "uniform-low")
        decision = Decision(
            own, self.step, boundary, estimate if steps else None, total if sat else None,
            uncertain if sat else None, tau, self.t_low if low else self.t_high,
        )  # fmt: skip
        self.ema = float(own) if self.ema is None else self.ema + (float(own) - self.ema) / self.window
        self.seen.append(units)
        self.in_step.append(units)
        return decision
