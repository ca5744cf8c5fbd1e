"""Scores of repeated samples with what is known of their error: avg@k, pass@k, maj@k and an interval.

Repeats of one problem are not independent, so the interval treats the problem as the unit (a cluster). All
functions take plain sequences; the order in which samples finished never matters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from resetcli.base.errors import UsageError

CONFIDENCE = 0.95


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean, exactly rounded; NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def clustered_interval(scores: Sequence[Sequence[float]]) -> tuple[float, float]:
    """95 % interval of the mean score, clustered by document.

    With m_i the mean of document i's samples and n documents, the estimate is m = mean(m_i), its standard error
    SE = sqrt(sum (m_i - m)^2 / (n (n - 1))), the interval m -+ t(0.975, n - 1) SE, cut to [0, 1]. Where every
    sample has the same score, 0 or 1, SE says nothing, and the exact binomial (Clopper-Pearson) bound for n
    documents stands in: 1 - 0.025^(1/n) from that end. One document, or none, bounds nothing: (0, 1).
    """
    means = [mean(s) for s in scores]
    n = len(means)
    if n < 2:
        return 0.0, 1.0
    centre = mean(means)
    if centre in (0.0, 1.0):
        reach = 1 - ((1 - CONFIDENCE) / 2) ** (1 / n)
        return (0.0, reach) if centre == 0 else (1 - reach, 1.0)
    from scipy.stats import t

    error = math.sqrt(math.fsum((m - centre) ** 2 for m in means) / (n * (n - 1)))
    half = float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * error
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

    Right answers are one answer however they are written; wrong ones are compared as text without spaces and
    leading zeros. A sample without an answer has no vote; without any vote the credit is 0.
    """
    votes: Counter[str | None] = Counter()
    for answer, score in zip(answers, scores, strict=True):
        if score == 1:
            votes[None] += 1
        elif answer is not None:
            votes["".join(answer.split()).lstrip("0")] += 1
    if not votes:
        return 0.0
    top = max(votes.values())
    tied = [answer for answer, count in votes.items() if count == top]
    return (None in tied) / len(tied)


def task_statistics(samples: Iterable[Mapping[str, Any]], repeats: int) -> dict[str, Any]:
    """The contract's object of one task (design 1.4), from its sample records.

    Args:
        samples: records with "doc_id", "repeat", "score", "answer", "why", "n_tokens", "finish_reason".
        repeats: k; every document must have exactly that many.

    Returns:
        {"n", "repeats", "avg@k", "ci95", "pass@k", "maj@k", "pass@" ("1", powers of two, k's number and "k"),
        "truncated", "unparsed", "tokens_mean"} and "errors", the samples lost to NaN logits (they score 0).

    Raises:
        UsageError: a document has more or fewer samples than ``repeats``.
    """
    docs: dict[Any, list[Mapping[str, Any]]] = {}
    for sample in samples:
        docs.setdefault(sample["doc_id"], []).append(sample)
    groups = [sorted(group, key=lambda s: s["repeat"]) for _, group in sorted(docs.items(), key=lambda kv: str(kv[0]))]
    for group in groups:
        if len(group) != repeats:
            raise UsageError(f"document {group[0]['doc_id']} has {len(group)} samples, not {repeats}")
    flat = [sample for group in groups for sample in group]
    scores = [[float(sample["score"]) for sample in group] for group in groups]
    correct = [int(sum(s)) for s in scores]
    ks = sorted({1, repeats} | {2**i for i in range(repeats.bit_length()) if 2**i <= repeats})
    passes = {str(k): mean([pass_at(repeats, c, k) for c in correct]) for k in ks}
    return {
        "n": len(groups),
        "repeats": repeats,
        "avg@k": mean([mean(s) for s in scores]),
        "ci95": list(clustered_interval(scores)),
        "pass@k": passes[str(repeats)],
        "maj@k": mean([majority_credit([x["answer"] for x in g], [x["score"] for x in g]) for g in groups]),
        "pass@": {**passes, "k": passes[str(repeats)]},
        "truncated": mean([sample["why"] == "truncated" for sample in flat]),
        "unparsed": mean([sample["why"] == "unparsed" for sample in flat]),
        "tokens_mean": mean([sample["n_tokens"] for sample in flat]),
        "errors": sum(sample["finish_reason"] == "error" for sample in flat),
    }
