"""What a run keeps in memory of its samples: everything but texts and prompts, packed.

A sample is a tuple under (task, document, repeat), with equal strings shared; its record, a dictionary, is made when
it is asked for. So a run's memory grows by some 0.3 kB a sample (``benchmarks/results/run-bookkeeping.json``),
however long the thoughts are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Key = tuple[str, Any, int]
"""(task, doc_id, repeat): what identifies a sample."""

FIELDS = ("seed", "prompt_sha256", "n_tokens", "finish_reason", "answer", "target", "score", "why", "empty")
"""What a record has beside its key. "empty": whether the model ended its answer without a visible character."""


def is_empty(sample: Mapping[str, Any]) -> bool:
    """Whether something was generated, and nothing of it can be seen."""
    generated = sample["n_tokens"] > 0 and sample["finish_reason"] != "error" and sample["why"] != "loglikelihood"
    return generated and not sample["text"].strip()


class SampleIndex(Mapping[Key, dict[str, Any]]):
    """Records by key. ``failed``: samples lost to logits that are not finite. ``empty``: samples without text."""

    def __init__(self) -> None:
        self._tasks: dict[str, dict[Any, dict[int, tuple]]] = {}
        self._shared: dict[Any, Any] = {}
        self._count = self.failed = self.empty = 0

    def add(self, sample: Mapping[str, Any]) -> None:
        """Keep what is needed of a line of samples.jsonl."""
        empty = is_empty(sample)
        packed = tuple(self._share(sample[field]) if field != "seed" else sample[field] for field in FIELDS[:-1])
        self._tasks.setdefault(sample["task"], {}).setdefault(sample["doc_id"], {})[sample["repeat"]] = (*packed, empty)
        self._count += 1
        self.failed += sample["finish_reason"] == "error"
        self.empty += empty

    def _share(self, value: Any) -> Any:
        return self._shared.setdefault(value, value) if isinstance(value, str) else value

    def __getitem__(self, key: Key) -> dict[str, Any]:
        task, doc_id, repeat = key
        return _record(task, doc_id, repeat, self._tasks[task][doc_id][repeat])

    def __contains__(self, key: object) -> bool:
        try:
            return isinstance(key, tuple) and key[2] in self._tasks[key[0]][key[1]]
        except (KeyError, IndexError):
            return False

    def __iter__(self) -> Iterator[Key]:
        for task, documents in self._tasks.items():
            for doc_id, repeats in documents.items():
                for repeat in repeats:
                    yield task, doc_id, repeat

    def __len__(self) -> int:
        return self._count

    def of_task(self, task: str) -> Iterator[dict[str, Any]]:
        """The task's records by document id (as text), then repeat."""
        documents = self._tasks.get(task, {})
        for doc_id in sorted(documents, key=str):
            for repeat, packed in sorted(documents[doc_id].items()):
                yield _record(task, doc_id, repeat, packed)


def _record(task: str, doc_id: Any, repeat: int, packed: tuple) -> dict[str, Any]:
    return {"task": task, "doc_id": doc_id, "repeat": repeat, **dict(zip(FIELDS, packed, strict=True))}
