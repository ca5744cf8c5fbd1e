"""One pass over a run's samples: lengths and verdicts counted, and which samples the page shows.

A run may have more samples than a browser takes, so the page shows a bounded number of them and cuts the longest
prompts and texts. What is chosen is the same whatever order samples finished in: tasks share the places evenly,
verdicts share those of a task, and within a verdict the first repeats come first, documents in order. Memory grows with
the number of samples shown and of different lengths, not with the number of samples.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

VERDICTS = ("correct", "wrong", "truncated", "unparsed")

MAX_SAMPLES = 1000
"""Samples on a page."""

MAX_CHARACTERS = 16_000_000
"""Characters of prompts and texts on a page, over all its samples."""

LEAST_CHARACTERS = 2000
"""A shown prompt or text is not cut below this."""


class Place(NamedTuple):
    """A sample's place in the order of choice; ``line`` counts from 1 in the file; ``sizes``: characters of prompt
    and text."""

    repeat: int
    doc: tuple[tuple[int, int, str], ...]
    line: int
    sizes: tuple[int, int]


@dataclass
class Summary:
    """What one pass found. ``lengths``: (verdict, tokens) -> samples, by task."""

    total: int = 0
    lengths: dict[str, Counter[tuple[str, int]]] = field(default_factory=dict)
    chosen: list[int] = field(default_factory=list)
    cap: int = 0
    cut: int = 0

    def verdicts(self, task: str | None = None) -> Counter[str]:
        """Samples by verdict, of one task or of all."""
        found: Counter[str] = Counter()
        for name, lengths in self.lengths.items():
            if task is None or name == task:
                for (why, _), count in lengths.items():
                    found[why] += count
        return found


def summarize(
    samples: Iterable[Mapping[str, Any]],
    tasks: Sequence[str],
    *,
    most: int = MAX_SAMPLES,
    characters: int = MAX_CHARACTERS,
) -> Summary:
    """Count ``samples`` (in the file's order) and choose at most ``most`` of them, ``characters`` in all.

    Texts without output (``loglikelihood``) are no samples here. ``chosen``: their line numbers in the order of the
    page: by task as in ``tasks``, document, repeat. ``cap``: characters from which on a prompt or a text is cut.
    ``cut``: chosen samples of which one is.
    """
    summary = Summary()
    buckets: dict[str, dict[str, list[Place]]] = {task: {} for task in tasks}
    for line, sample in enumerate(samples, 1):
        why, task = sample["why"], sample["task"]
        if why not in VERDICTS:
            continue
        summary.total += 1
        summary.lengths.setdefault(task, Counter())[why, sample["n_tokens"]] += 1
        bucket = buckets.setdefault(task, {}).setdefault(why, [])
        sizes = len(sample.get("prompt", "")), len(sample["text"])
        place = Place(sample["repeat"], natural(sample["doc_id"]), line, sizes)
        if len(bucket) < most or place < bucket[-1]:
            bisect.insort(bucket, place)
            del bucket[most:]
    shares = share([sum(map(len, by_why.values())) for by_why in buckets.values()], most)
    places: list[Place] = []
    for by_why, places_of_task in zip(buckets.values(), shares, strict=True):
        counts = share([len(by_why.get(why, ())) for why in VERDICTS], places_of_task)
        taken = [p for why, count in zip(VERDICTS, counts, strict=True) for p in by_why.get(why, ())[:count]]
        places += sorted(taken, key=lambda p: (p.doc, p.repeat))
    summary.chosen = [place.line for place in places]
    summary.cap = max(LEAST_CHARACTERS, level([size for place in places for size in place.sizes], characters))
    summary.cut = sum(max(place.sizes) > summary.cap for place in places)
    return summary


def natural(doc_id: Any) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts 2022-I-2 before 2022-I-10.

    >>> natural("2022-I-2") < natural("2022-I-10") < natural("2022-II-1")
    True
    """
    # Other digits than ASCII ones are text; int() would refuse some of them.
    parts = re.findall(r"[0-9]+|[^0-9]+", str(doc_id))
    return tuple((0, int(p), p) if "0" <= p[0] <= "9" and len(p) < 1000 else (1, 0, p) for p in parts)


def level(sizes: Sequence[int], total: int) -> int:
    """The largest cap with sum(min(size, cap)) <= total; the largest size if all fit.

    >>> level([10, 1, 1], 8), level([3, 3], 100)
    (6, 3)
    """
    left = total
    ordered = sorted(sizes)
    for i, size in enumerate(ordered):
        rest = len(ordered) - i
        if size * rest > left:
            return left // rest
        left -= size
    return ordered[-1] if ordered else 0


def share(sizes: Sequence[int], total: int) -> list[int]:
    """``total`` places shared evenly; what one group has no use for goes to the others.

    >>> share([100, 2, 100], 10), share([1, 1], 10)
    ([4, 2, 4], [1, 1])
    """
    cap = level(sizes, total)
    taken = [min(size, cap) for size in sizes]
    for i, size in enumerate(sizes):
        if sum(taken) < min(total, sum(sizes)) and taken[i] < size:
            taken[i] += 1
    return taken
