"""How sure a difference between two runs on the same documents is: interval, p-value, least difference to be seen.

The document is the unit. Samples of one document are not independent, and two runs find the same documents hard, so
all here looks at d_i, what one document scored in run B less what it scored in run A. Resampling is used rather than
a normal approximation because d_i takes few values and is far from normal; it is vectorised and seeded, so the same
runs give the same figures. What it costs: figures with a Monte Carlo error, small at the default number of draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

CONFIDENCE = 0.95
POWER = 0.8
RESAMPLES = 20_000
_BLOCK = 2_000_000
"""Most numbers drawn at once: 16 MB."""
_EPS = 1e-9
_TIE_BREAK = 1e-6
"""Small enough that it never outweighs one sample more or less, for documents times repeats below half a million."""
_ROUNDING = 1e-13
"""Of a sum, by which equal ones may seem to differ."""


def bootstrap_interval(
    d: Values, *, step: float | None, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float] | None:
    """95 % interval of the mean difference, documents drawn with replacement.

    The plain percentile interval covers less than it says with few documents, or few that differ, so two things widen
    it. The percentile is Phi(sqrt(n / (n - 1)) t(0.025, n - 1)) in place of 0.025 (the expanded percentile interval of
    Hesterberg, The American Statistician 69, 2015), and two made-up documents that differ by +step and -step are
    drawn along (with one sample a document, the adjustment of Bonett and Price, 2012, for paired proportions). Where
    no two documents differ in d, resampling says nothing, and the interval is the exact binomial bound on the share of
    other documents, 1 - 0.025^(1/n).

    Args:
        d: difference by document, [n].
        step: the smallest difference that a document can show, such as 1 / repeats for a mean of 0 and 1; d is then
            known to lie in [-1, 1]. None for quantities without bounds.

    Returns:
        (low, high), with the mean of d between them; None for fewer than two documents of unbounded quantities.
    """
    n = len(d)
    if n < 2 or (np.ptp(d) < _EPS and step is None):
        return (-1.0, 1.0) if step is not None else None
    centre = float(d.mean())
    if np.ptp(d) < _EPS:
        reach = 1 - ((1 - CONFIDENCE) / 2) ** (1 / n)
        return max(-1.0, centre - reach * (1 + centre)), min(1.0, centre + reach * (1 - centre))
    drawn = np.append(d, [step, -step]) if step is not None else d
    low, high = np.quantile(_resampled_means(drawn, resamples, seed), _expanded_tails(n))
    low, high = min(float(low), centre), max(float(high), centre)
    return (low, high) if step is None else (max(-1.0, low), min(1.0, high))


def _expanded_tails(n: int) -> tuple[float, float]:
    from scipy.special import ndtr, stdtrit

    tail = float(ndtr(math.sqrt(n / (n - 1)) * stdtrit(n - 1, (1 - CONFIDENCE) / 2)))
    return tail, 1 - tail


def _resampled_means(d: Values, resamples: int, seed: int) -> Values:
    """Means of ``resamples`` draws of n out of d with replacement, [resamples]."""
    rng, n = np.random.default_rng(seed), len(d)
    blocks = _blocks(resamples, n)
    return np.concatenate([d[rng.integers(n, size=(rows, n))].mean(1) for rows in blocks])


def _blocks(rows: int, columns: int) -> list[int]:
    size = max(1, _BLOCK // max(columns, 1))
    return [min(size, rows - start) for start in range(0, rows, size)]


def sign_flip_p(d: Values, *, precision: Values | None = None, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Two-sided permutation p-value of "no difference": how often the runs' names, swapped by lot in each document with
    all its samples together, give a mean at least as far from 0.

    Exact, over all swaps, where there are no more of them than ``resamples``; else (1 + hits) / (1 + resamples), which
    is never 0 (Phipson and Smyth, arXiv 1603.05766).

    Args:
        d: difference by document, [n].
        precision: [n], from what is the same whichever run is called A. Of swaps with equal means, that is farther
            from 0 whose mean weighted by it is. Scores are whole numbers, so ties are many (all sums are even, or all
            odd), and a p-value that counts them all is too large; broken this way it is nearly continuous, and exact
            still. Without: ties count in full.
    """
    if precision is not None and len(d):
        d = d * (1 + _TIE_BREAK * precision / max(float(precision.max()), _EPS))
    d = d[np.abs(d) > _EPS]
    least = abs(float(d.sum())) - _ROUNDING * float(np.abs(d).sum())
    if len(d) < 40 and 2 ** len(d) <= resamples:
        sums = np.zeros(1)
        for value in d:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(np.abs(sums) >= least))
    rng, hits = np.random.default_rng(seed), 0
    for rows in _blocks(resamples, len(d)):
        signs = rng.integers(0, 2, size=(rows, len(d)), dtype=np.int8)
        # The sum of d with signs +-1 is twice that of those drawn, less that of all.
        hits += int((np.abs(2 * (signs @ d) - d.sum()) >= least).sum())
    return (1 + hits) / (1 + resamples)


def detectable_difference(d: Values, *, step: float | None) -> float | None:
    """The true mean difference that a comparison of this many documents with this much spread would find at the 5 %
    level in 80 % of cases: (t(0.975, n - 1) + t(0.8, n - 1)) SE. The spread counts the two made-up documents of
    ``bootstrap_interval``, so that it is not 0 where few documents differ. None below two documents,
    and for a bounded quantity where not even 1 would be found.
    """
    n = len(d)
    if n < 2:
        return None
    from scipy.special import stdtrit

    spread = float(np.append(d, [step, -step]).std(ddof=1)) if step is not None else float(d.std(ddof=1))
    least = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2) + stdtrit(n - 1, POWER)) * spread / math.sqrt(n)
    return least if step is None or least <= 1 else None


def mcnemar(a: Sequence[bool] | NDArray[np.bool_], b: Sequence[bool] | NDArray[np.bool_]) -> dict[str, Any]:
    """McNemar's table of documents right (True) in runs A and B, with the exact two-sided binomial p-value.

    Returns:
        {"both", "only_a", "only_b", "neither", "p"}.
    """
    a, b = np.asarray(a, bool), np.asarray(b, bool)
    only_a, only_b = int((a & ~b).sum()), int((~a & b).sum())
    n, few = only_a + only_b, min(only_a, only_b)
    p = min(1.0, 2 * sum(math.comb(n, i) for i in range(few + 1)) / 2**n)
    return {
        "both": int((a & b).sum()), "only_a": only_a, "only_b": only_b, "neither": int((~a & ~b).sum()), "p": p
    }  # fmt: skip


def holm(p: Sequence[float]) -> list[float]:
    """P-values adjusted for their number by Holm's step-down rule, in the order given."""
    adjusted, worst = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        worst = max(worst, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = worst
    return adjusted


def ratio_interval(
    numerator: Values, denominator: Values, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float] | None:
    """95 % bootstrap interval of sum(numerator) / sum(denominator), documents drawn with replacement, tails expanded as
    in ``bootstrap_interval``; None below two documents."""
    n = len(numerator)
    if n < 2:
        return None
    rng = np.random.default_rng(seed)
    found = []
    for rows in _blocks(resamples, n):
        drawn = rng.integers(n, size=(rows, n))
        found.append(numerator[drawn].sum(1) / denominator[drawn].sum(1))
    low, high = np.quantile(np.concatenate(found), _expanded_tails(n))
    centre = float(numerator.sum() / denominator.sum())
    return min(float(low), centre), max(float(high), centre)
