"""Two runs of one task against each other, document by document: every metric's difference with what is known of it.

Pairing is what makes small differences visible: a problem that both runs find hard cancels. All is over the repeats
that both runs have, and a document with all its samples is the unit (see `resampling`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resetcli.base.errors import ResetError
from resetcli.evaluation.columns import ScoreTable
from resetcli.evaluation.resampling import (
    RESAMPLES,
    Values,
    bootstrap_interval,
    detectable_difference,
    mcnemar,
    ratio_interval,
    sign_flip_p,
)
from resetcli.evaluation.statistics import majority_credits, passes


def compare_pair(
    a: ScoreTable, b: ScoreTable, *, pass_at: int | None = None, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Any]:
    """Run B less run A on the same documents, over the repeats that both have.

    Returns:
        {"kind": "score", "n", "repeats", "values": {metric: [A, B]}, "differences": {metric: {"difference", "ci95",
        "p", "detectable"}} (metrics "avg@k", "maj@k", "pass@k", "truncated", "unparsed", "tokens_mean", and
        "pass@<K>" if asked), "mcnemar" (documents by majority: "both", "only_a", "only_b", "neither", "p"), "better",
        "worse", "same" (documents by their mean score), "flipped": [{"doc_id", "a", "b" (right samples), "gained"}]}.
    """
    if a.docs != b.docs:
        raise ResetError("the runs have other documents than each other")
    k = min(a.repeats, b.repeats)
    a, b = a.first(k), b.first(k)
    step = {"avg@k": 1 / k, "maj@k": 1.0, "pass@k": 1.0, "truncated": 1 / k, "unparsed": 1 / k, "tokens_mean": None}
    if pass_at is not None:
        step[f"pass@{pass_at}"] = 1.0
    left, right = _by_document(a, pass_at), _by_document(b, pass_at)
    precision = _precision(a, b)
    differences = {
        metric: _difference(right[metric] - left[metric], smallest, precision, resamples, seed)
        for metric, smallest in step.items()
    }
    won_a, won_b = left["maj@k"] > 0.5, right["maj@k"] > 0.5
    right_a, right_b = (table.score.sum(1).astype(int).tolist() for table in (a, b))
    moved = np.sign(np.round(right["avg@k"] - left["avg@k"], 9))
    flipped = [
        {"doc_id": a.docs[i], "a": right_a[i], "b": right_b[i], "gained": bool(won_b[i])}
        for i in np.flatnonzero(won_a != won_b).tolist()
    ]
    return {
        "kind": "score",
        "n": a.n,
        "repeats": k,
        "values": {metric: [float(left[metric].mean()), float(right[metric].mean())] for metric in step},
        "differences": differences,
        "mcnemar": mcnemar(won_a, won_b),
        "better": int((moved > 0).sum()),
        "worse": int((moved < 0).sum()),
        "same": int((moved == 0).sum()),
        "flipped": sorted(flipped, key=lambda f: (f["gained"], -abs(f["a"] - f["b"]))),
    }


def _by_document(table: ScoreTable, pass_at: int | None) -> dict[str, Values]:
    found = {
        "avg@k": table.score.mean(1), "maj@k": majority_credits(table), "pass@k": passes(table, table.repeats),
        "truncated": table.share("truncated"), "unparsed": table.share("unparsed"),
        "tokens_mean": table.tokens.mean(1),
    }  # fmt: skip
    return found if pass_at is None else {**found, f"pass@{pass_at}": passes(table, pass_at)}


def _precision(a: ScoreTable, b: ScoreTable) -> Values:
    """One over the variance of a document's scores, both runs together, up to a factor; 0 where all agree. With one
    sample a document all that differ are alike."""
    k, right = a.repeats, a.score.sum(1) + b.score.sum(1)
    spread = right * (2 * k - right)
    return np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)


def _difference(d: Values, step: float | None, precision: Values, resamples: int, seed: int) -> dict[str, Any]:
    interval = bootstrap_interval(d, step=step, resamples=resamples, seed=seed)
    return {
        "difference": float(d.mean()),
        "ci95": list(interval) if interval is not None else None,
        "p": sign_flip_p(d, precision=precision, resamples=resamples, seed=seed),
        "detectable": detectable_difference(d, step=step),
    }


def compare_perplexity(a: ScoreTable, b: ScoreTable, *, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """Token perplexities of the same texts in the same tokens; texts are drawn with replacement.

    Returns:
        {"kind": "perplexity", "n", "values": {"token_perplexity": [A, B]}, "differences": {"log_perplexity":
        {"difference" (nats a token, B less A), "ci95", "p"}}}.
    """
    tokens = a.tokens[:, 0].astype(float)
    lost = a.score[:, 0] - b.score[:, 0]
    interval = ratio_interval(lost, tokens, resamples=resamples, seed=seed)
    return {
        "kind": "perplexity", "n": a.n,
        "values": {"token_perplexity": [math.exp(-float(t.score.sum()) / tokens.sum()) for t in (a, b)]},
        "differences": {
            "log_perplexity": {
                "difference": float(lost.sum() / tokens.sum()), "ci95": list(interval) if interval else None,
                "p": sign_flip_p(lost, resamples=resamples, seed=seed),
            }
        },
    }  # fmt: skip
