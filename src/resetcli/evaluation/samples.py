"""A line of ``samples.jsonl``: its keys, their types, and whether it is of the run that asks for it.

A file on the disk may be damaged, edited or of another run. Every line is looked at when a run goes on, before a
model is loaded, so that no result counts a sample that this run would not have made.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.base.seeds import sample_seed
from resetcli.evaluation.lines import whole_lines

SAMPLE_KEYS = (
    "task", "doc_id", "repeat", "seed", "prompt_sha256", "text", "n_tokens", "finish_reason", "answer", "target",
    "score", "why", "prompt",
)  # fmt: skip
"""The keys of a line of samples.jsonl, all and in this order. "prompt" is the exact text that the model read; runs of
versions that did not keep it go on without."""

OPTIONAL = frozenset({"prompt"})

REMEDY = "restore the file or choose another -o"


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _small(value: Any) -> bool:
    return _whole(value) and value < 2**63


def _finite(value: Any) -> bool:
    if isinstance(value, int):
        # Whole numbers have no bounds in JSON; floating point has.
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _text_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


TYPES = {
    "task": (_text, "a text"),
    "doc_id": (lambda v: _text(v) or _whole(v), "a text or a whole number"),
    "repeat": (_small, "a whole number from 0"),
    "seed": (_small, "a whole number below 2^63"),
    "prompt_sha256": (lambda v: _text(v) and re.fullmatch("[0-9a-f]{64}", v), "64 hexadecimal digits"),
    "text": (_text, "a text"),
    "n_tokens": (_small, "a whole number from 0"),
    "finish_reason": (lambda v: v in ("stop", "length", "error"), "stop, length or error"),
    "answer": (_text_or_null, "a text or null"),
    "target": (_text_or_null, "a text or null"),
    "score": (_finite, "a finite number"),
    "why": (lambda v: v in ("correct", "wrong", "unparsed", "truncated", "loglikelihood"), "a verdict"),
    "prompt": (_text, "a text"),
}
"""Of each key: whether a value may stand there, and what may, in words."""


@dataclass(frozen=True)
class Asked:
    """The samples that a run asks for: documents by task with their targets, repeats by task, the run's seed."""

    targets: Mapping[str, Mapping[Any, Any]]
    repeats: Mapping[str, int]
    scored: frozenset[str]
    seed: int

    def __len__(self) -> int:
        return sum(len(docs) * self.repeats[task] for task, docs in self.targets.items())

    def fault(self, sample: Mapping[str, Any]) -> str | None:
        """Why a sample with the right types is none of this run's; None if it is one."""
        task, doc_id, repeat = sample["task"], sample["doc_id"], sample["repeat"]
        if task not in self.targets:
            return f"task {_shown(task)} is not of this run ({', '.join(self.targets)})"
        if doc_id not in self.targets[task]:
            return f"this run asks for no document {_shown(doc_id)} of task {task}"
        if repeat >= self.repeats[task]:
            return f"repeat {repeat} is beyond the {self.repeats[task]} of this run (they count from 0)"
        if sample["seed"] != (wanted := sample_seed(self.seed, task, doc_id, repeat)):
            return f"seed {sample['seed']} is not that of the sample in this run ({wanted})"
        if sample["target"] != self.targets[task][doc_id]:
            return f"target {_shown(sample['target'])} is not that of document {doc_id} of task {task}"
        return score_fault(sample) if task in self.scored else None


def score_fault(sample: Mapping[str, Any]) -> str | None:
    """Why a sample's score is none of a task with answers; None if it is one."""
    if sample["score"] in (0, 1) and sample["why"] != "loglikelihood":
        return None
    return f"score {sample['score']} ({sample['why']}) is not one of task {sample['task']} (0 or 1)"


def parse_sample(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """The sample of one line.

    Raises:
        ResetError: it is none; names file, line and key.
    """
    where = f"{path}, line {number}"
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise ResetError(f"{where} is not JSON ({exc}); {REMEDY}") from exc
    if not isinstance(sample, dict) or set(sample) | OPTIONAL != set(SAMPLE_KEYS):
        raise ResetError(f"{where} is not a sample of a run; {REMEDY}")
    for key, (fits, words) in TYPES.items():
        if key in sample and not fits(sample[key]):
            raise ResetError(f'{where}: "{key}" must be {words}, not {_shown(sample[key])}; {REMEDY}')
    return sample


def read_lines(path: Path, *, torn: bool = False) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes) of each whole line, of a gzip file too; a last line without end only with ``torn``.

    Raises:
        ResetError: missing, no file, or unreadable.
    """
    for number, line, _end in whole_lines(path, torn=torn):
        yield number, line


def _shown(value: Any) -> str:
    """A value as ASCII JSON, cut short: whatever a damaged file holds can be printed."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
