"""The samples of one task as columns: what statistics need of them, in some 40 bytes each and no text.

A run of 100,000 samples as dictionaries takes a hundred times that. Samples may come in any order; the table made of
them is sorted, so that no figure depends on the order in which they finished.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resetcli.base.errors import UsageError

NO_VOTE, RIGHT = 0, 1
"""Votes of samples without an answer, and of right ones; other votes are 64-bit hashes of the answer."""

WHYS = ("correct", "wrong", "unparsed", "truncated", "loglikelihood")


def vote(answer: str | None, score: float) -> int:
    """What a sample votes for in maj@k. Right answers are one answer however they are written; wrong ones are compared
    as text without white space and leading zeros."""
    if score == 1:
        return RIGHT
    if answer is None:
        return NO_VOTE
    text = "".join(answer.split()).lstrip("0")
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little") >> 1 | 2


@dataclass(frozen=True)
class ScoreTable:
    """n documents (sorted as text) with k samples each (by repeat): arrays [n, k].

    ``score`` float64; ``votes`` int64 (see ``vote``); ``why`` int8, index into ``WHYS``; ``tokens`` int64; ``failed``
    bool, samples lost to logits that are not finite (they score 0).
    """

    docs: list[Any]
    score: NDArray[np.float64]
    votes: NDArray[np.int64]
    why: NDArray[np.int8]
    tokens: NDArray[np.int64]
    failed: NDArray[np.bool_]

    @property
    def n(self) -> int:
        return len(self.docs)

    @property
    def repeats(self) -> int:
        return int(self.score.shape[1])

    def share(self, why: str) -> NDArray[np.float64]:
        """By document, the share of samples with that verdict, [n]."""
        return (self.why == WHYS.index(why)).mean(1)

    def first(self, repeats: int) -> ScoreTable:
        """The first ``repeats`` samples of each document."""
        k = slice(repeats)
        return ScoreTable(
            self.docs, self.score[:, k], self.votes[:, k], self.why[:, k], self.tokens[:, k], self.failed[:, k]
        )


class Columns:
    """Collects samples of one task."""

    def __init__(self, samples: Iterable[Mapping[str, Any]] = ()):
        self._rows: dict[Any, int] = {}
        self._doc, self._repeat, self._tokens, self._vote = (array("q") for _ in range(4))
        self._why, self._failed = array("b"), array("b")
        self._score = array("d")
        for sample in samples:
            self.add(sample)

    def __len__(self) -> int:
        return len(self._score)

    def add(self, sample: Mapping[str, Any]) -> None:
        """Take one record, with "doc_id", "repeat", "score", "answer", "why", "n_tokens", "finish_reason"."""
        self._doc.append(self._rows.setdefault(sample["doc_id"], len(self._rows)))
        self._repeat.append(sample["repeat"])
        self._score.append(sample["score"])
        self._vote.append(vote(sample["answer"], sample["score"]))
        self._why.append(WHYS.index(sample["why"]))
        self._tokens.append(sample["n_tokens"])
        self._failed.append(sample["finish_reason"] == "error")

    @property
    def most_repeats(self) -> int:
        """One more than the highest repeat; 0 without samples."""
        return max(self._repeat, default=-1) + 1

    def table(self, repeats: int) -> ScoreTable:
        """The samples by document and repeat.

        Raises:
            UsageError: a document has not exactly the repeats 0 to ``repeats`` - 1.
        """
        docs = sorted(self._rows, key=str)
        rank = np.empty(len(docs), np.int64)
        rank[[self._rows[doc] for doc in docs]] = np.arange(len(docs))
        row = rank[_array(self._doc)] if docs else np.empty(0, np.int64)
        count = np.bincount(row, minlength=len(docs))
        if (odd := np.flatnonzero(count != repeats)).size:
            raise UsageError(f"document {docs[odd[0]]} has {count[odd[0]]} samples, not {repeats}")
        order = np.lexsort((_array(self._repeat), row))
        shape = (len(docs), repeats)
        if (_array(self._repeat)[order].reshape(shape) != np.arange(repeats)).any():
            raise UsageError(f"a document has other samples than repeats 0 to {repeats - 1}, each once")

        def sort(column: array) -> NDArray[Any]:
            return _array(column)[order].reshape(shape)

        return ScoreTable(
            docs, sort(self._score), sort(self._vote), sort(self._why), sort(self._tokens),
            sort(self._failed).astype(bool),
        )  # fmt: skip


def _array(column: array) -> NDArray[Any]:
    """A copy, for an array.array cannot grow while numpy looks at it."""
    return np.array(column, dtype=column.typecode)
