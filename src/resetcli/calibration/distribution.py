"""Percentiles of token entropies, how far they move under a bootstrap over problems, and their histogram.

Tokens of one answer are far from independent, so the bootstrap draws whole problems. Each draw needs a
percentile of up to 10^5 tokens a problem; all tokens are sorted once and a draw only re-weights them, which
gives exactly the percentile of the concatenated answers without sorting again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PERCENTILES = (50, 60, 70, 75, 80, 85, 90, 95, 99)
"""The percentiles that calibration reports and stores."""

_WIDTHS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0)
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class Bootstrap:
    """Spread of a percentile over resampled problems; the three numbers are None with fewer than two problems."""

    draws: int
    low: float | None
    high: float | None
    std: float | None

    def to_json(self) -> dict[str, object]:
        """{"draws", "ci95": [low, high] or null, "std" or null}, entropies in nats."""
        return {"draws": self.draws, "ci95": None if self.low is None else [self.low, self.high], "std": self.std}


@dataclass(frozen=True)
class Histogram:
    """Counts of entropies in equal bins: ``counts[i]`` tokens in [edges[i], edges[i+1]), the last bin closed."""

    edges: list[float]
    counts: list[int]

    def to_json(self) -> dict[str, object]:
        """{"edges": nats, "counts": tokens}."""
        return {"edges": self.edges, "counts": self.counts}


def percentile(values: np.ndarray, q: float) -> float:
    """The ``q``-th percentile (0 to 100) of ``values``, linear interpolation between order statistics."""
    return float(np.percentile(np.asarray(values, dtype=np.float64), q, method="linear"))


def entropy_percentiles(values: np.ndarray, qs: Sequence[int] = PERCENTILES) -> dict[str, float]:
    """{"50": nats, ...} for each of ``qs``."""
    return {str(q): percentile(values, q) for q in qs}


def bootstrap_percentile(groups: Sequence[np.ndarray], q: float, *, seed: int, draws: int = 1000) -> Bootstrap:
    """How the ``q``-th percentile of the pooled ``groups`` moves when problems are drawn with replacement.

    Args:
        groups: one float64 [n_tokens] array a problem; empty ones count as problems without tokens.
        q: percentile, 0 to 100.
        seed: of the draws; the same seed gives the same figures.
        draws: resamples of ``len(groups)`` problems each.

    Returns:
        The 2.5th and 97.5th percentiles and the standard deviation (n - 1) over the draws.
    """
    if len(groups) < 2:
        return Bootstrap(0, None, None, None)
    owner = np.concatenate([np.full(len(group), i) for i, group in enumerate(groups)])
    values = np.concatenate([np.asarray(group, dtype=np.float64) for group in groups])
    order = np.argsort(values, kind="stable")
    values, owner = values[order], owner[order]
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(draws):
        times = np.bincount(rng.integers(len(groups), size=len(groups)), minlength=len(groups))
        ends = np.cumsum(times[owner])
        if len(ends) and ends[-1]:
            found.append(_weighted_percentile(values, ends, q))
    if not found:
        return Bootstrap(0, None, None, None)
    low, high = np.percentile(found, [2.5, 97.5])
    return Bootstrap(len(found), float(low), float(high), float(np.std(found, ddof=1)) if len(found) > 1 else None)


def _weighted_percentile(values: np.ndarray, ends: np.ndarray, q: float) -> float:
    """Percentile of sorted ``values`` repeated so that ``ends[i]`` items are at or before value i."""
    place = (int(ends[-1]) - 1) * q / 100
    below = int(place)
    first = values[np.searchsorted(ends, below, side="right")]
    second = values[np.searchsorted(ends, min(below + 1, int(ends[-1]) - 1), side="right")]
    return float(first + (second - first) * (place - below))


def histogram(values: np.ndarray, *, max_bins: int = 20) -> Histogram:
    """Equal bins from 0 nats to the largest entropy, of the finest round width that needs at most ``max_bins``."""
    top = max(float(np.max(values)), 1e-6)
    width = next((w for w in _WIDTHS if top <= w * max_bins), top / max_bins)
    bins = max(1, int(np.ceil(top / width - 1e-9)))
    edges = np.arange(bins + 1) * width
    # A value a rounding error above the last edge belongs to the last bin.
    counts, _ = np.histogram(np.minimum(values, edges[-1]), edges)
    return Histogram([round(float(edge), 9) for edge in edges], [int(count) for count in counts])


def render_histogram(hist: Histogram, tau_0: float, *, width: int = 40, unicode: bool = True) -> str:
    """The histogram as plain text, one line a bin, the bin of ``tau_0`` marked; no colours, no carriage returns.

    Bars are linear in the count and the longest has ``width`` characters; a bin that has tokens never looks empty.
    """
    most, total = max(hist.counts), sum(hist.counts)
    digits = 2 if hist.edges[1] >= 0.01 else 6
    lines = []
    for i, count in enumerate(hist.counts):
        low, high = hist.edges[i], hist.edges[i + 1]
        bar = _bar(count * width / most, unicode) if count else ""
        last = i == len(hist.counts) - 1
        mark = f"  <- tau_0 {tau_0:.4f}" if low <= tau_0 < high or (last and tau_0 >= high) else ""
        label = f"{low:6.{digits}f} -{high:6.{digits}f}"
        lines.append(f"{label}  {bar:<{width}}  {100 * count / total:5.1f} %{mark}")
    return "\n".join(lines)


def _bar(length: float, unicode: bool) -> str:
    if not unicode:
        return "#" * max(1, round(length))
    eighths = max(1, round(length * 8))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
