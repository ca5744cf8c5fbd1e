"""Samples that tell nothing of a model: logits that are not finite, answers without a visible character.

A failed sample scores 0 and ends the run with exit code 1, once the others are made. An empty one is an answer of
sorts: it is counted and scored as what it is, unparsed. Where the two together are more than a share of the run, the
model or its settings are broken, and going on for hours would say it no better: the run ends there and then, if it is
long enough for the share to mean something, and in any case with exit code 1.
"""

from __future__ import annotations

from resetcli.evaluation.index import SampleIndex

MAX_FAILED = 0.25
"""Share of a run's samples that may fail or be empty, by default."""

AT_LEAST = 5
"""So many there must be before a run is ended early."""


def too_many(samples: SampleIndex, expected: int, max_failed: float) -> bool:
    """Whether failed and empty samples are more than the share ``max_failed`` of the ``expected``."""
    return samples.failed + samples.empty > max_failed * expected


def counts(samples: SampleIndex) -> str:
    """How many samples there are and what is wrong with how many."""
    parts = []
    if samples.failed:
        parts.append(f"{samples.failed} failed, as their logits were not finite")
    if samples.empty:
        parts.append(f"{samples.empty} {'is' if samples.empty == 1 else 'are'} empty")
    return f"of {len(samples)} samples made, " + ", and ".join(parts)
