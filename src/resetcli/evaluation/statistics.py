"""Scores of repeated samples with what is known of their error: avg@k, pass@k, maj@k and an interval.

Repeats of one problem are not independent, so the interval treats the problem as the unit (a cluster). The order in
which samples finished never matters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resetcli.base.errors import UsageError
from resetcli.evaluation.columns import NO_VOTE, RIGHT, WHYS, Columns, ScoreTable, vote

CONFIDENCE = 0.95
PERCENTILES = (5, 25, 50, 75, 95)
"""Of the samples' token counts."""


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean, exactly rounded; NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def clustered_interval(scores: Sequence[Sequence[float]]) -> tuple[float, float]:
    """95 % interval of the mean score, clustered by document.

    With m_i the mean of document i's samples and n documents, the estimate is m = mean(m_i), its standard error
    SE = sqrt(sum (m_i - m)^2 / (n (n - 1))), the interval m -+ t(0.975, n - 1) SE, cut to [0, 1]. Where all m_i
    are equal, as when every sample is wrong, SE says nothing, and the exact binomial (Clopper-Pearson) bound
    r = 1 - 0.025^(1/n) on the share of other documents stands in: (m (1 - r), m + r (1 - m)). One document, or none,
    bounds nothing: (0, 1). Where few documents are ever solved, or few ever missed, it covers less than 95 %
    (docs/evaluation.md has figures).
    """
    means = [mean(s) for s in scores]
    n = len(means)
    if n < 2:
        return 0.0, 1.0
    centre = mean(means)
    if max(means) == min(means):
        reach = 1 - ((1 - CONFIDENCE) / 2) ** (1 / n)
        return centre * (1 - reach), centre + reach * (1 - centre)
    # Of scipy.stats the import alone takes a second.
    from scipy.special import stdtrit

    error = math.sqrt(math.fsum((m - centre) ** 2 for m in means) / (n * (n - 1)))
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * error
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at(samples: int, correct: int, k: int) -> float:
    """Chance that k of ``samples`` samples, drawn without replacement, hold a correct one: 1 - C(n-c,k)/C(n,k).

    Unbiased for "at least one of k new samples is right" (Chen et al., arXiv 2107.03374, equation 1).

    Raises:
        UsageError: k is below 1 or above the number of samples, or ``correct`` is not among them.
    """
    if not 1 <= k <= samples:
        raise UsageError(f"pass@{k} needs at least {max(k, 1)} samples per problem and k >= 1; there are {samples}")
    if not 0 <= correct <= samples:
        raise UsageError(f"{correct} correct of {samples} samples is impossible")
    return 1 - math.comb(samples - correct, k) / math.comb(samples, k)


def majority_credit(answers: Sequence[str | None], scores: Sequence[float]) -> float:
    """Credit of the most frequent answer of one document; answers that tie for first share it.

    A sample without an answer has no vote; without any vote the credit is 0. Which answers are the same:
    ``columns.vote``.
    """
    return _credit([vote(answer, score) for answer, score in zip(answers, scores, strict=True)])


def _credit(votes: Iterable[int]) -> float:
    counts = Counter(v for v in votes if v != NO_VOTE)
    if not counts:
        return 0.0
    top = max(counts.values())
    return (counts[RIGHT] == top) / sum(count == top for count in counts.values())


def majority_credits(table: ScoreTable) -> NDArray[np.float64]:
    """``majority_credit`` of each document, [n]."""
    return np.array([_credit(votes) for votes in table.votes.tolist()], float)


def passes(table: ScoreTable, k: int) -> NDArray[np.float64]:
    """pass@k of each document, [n].

    Raises:
        UsageError: k is above the number of samples (or below 1).
    """
    by_count = {c: pass_at(table.repeats, c, k) for c in range(table.repeats + 1)}
    return np.array([by_count[int(c)] for c in table.score.sum(1)], float)


def task_statistics(samples: Iterable[Mapping[str, Any]] | Columns, repeats: int) -> dict[str, Any]:
    """The contract's object of one task (design 1.4), from its sample records.

    Args:
        samples: records with "doc_id", "repeat", "score", "answer", "why", "n_tokens", "finish_reason"; read once, so
            they may come from a file one by one; or the columns made of them.
        repeats: k; every document must have exactly that many.

    Returns:
        {"n", "repeats", "avg@k", "ci95", "pass@k", "maj@k", "pass@" ("1", powers of two, k's number and "k"),
        "truncated", "unparsed", "tokens_mean", "tokens_percentiles" (``PERCENTILES``, linear), "tokens_max"} and
        "errors", the samples lost to NaN logits (they score 0).

    Raises:
        UsageError: a document has more or fewer samples than ``repeats``.
    """
    columns = samples if isinstance(samples, Columns) else Columns(samples)
    return table_statistics(columns.table(repeats))


def table_statistics(table: ScoreTable) -> dict[str, Any]:
    """What ``task_statistics`` returns."""
    repeats = table.repeats
    ks = sorted({1, repeats} | {2**i for i in range(repeats.bit_length()) if 2**i <= repeats})
    pass_ = {str(k): mean(passes(table, k).tolist()) for k in ks}
    levels = np.percentile(table.tokens, PERCENTILES).tolist() if table.n else [None] * len(PERCENTILES)
    return {
        "n": table.n,
        "repeats": repeats,
        "avg@k": mean(table.score.mean(1).tolist()),
        "ci95": list(clustered_interval(table.score.tolist())),
        "pass@k": pass_[str(repeats)],
        "maj@k": mean(majority_credits(table).tolist()),
        "pass@": {**pass_, "k": pass_[str(repeats)]},
        "truncated": mean((table.why == WHYS.index("truncated")).ravel().tolist()),
        "unparsed": mean((table.why == WHYS.index("unparsed")).ravel().tolist()),
        "tokens_mean": mean(table.tokens.ravel().tolist()),
        "tokens_percentiles": {str(p): level for p, level in zip(PERCENTILES, levels, strict=True)},
        "tokens_max": int(table.tokens.max()) if table.n else 0,
        "errors": int(table.failed.sum()),
    }
