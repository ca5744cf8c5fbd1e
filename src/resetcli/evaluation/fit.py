"""Prompts that the context has no room for: counted, said, and refused where they are most of a task.

Cutting a prompt would change the question, so none is cut: a prompt without room for one token of answer gets a
sample without text and score 0. A few of those lower a score a little, and a warning says so. Where they are more
than half of a task's prompts, its score would tell of the context and not of the model: such a run is refused once
the prompts are read, before anything is generated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.base.reporting import Reporter

REFUSED_ABOVE = 0.5
"""Share of a task's prompts from which on, exclusive, prompts that do not fit make the run fail."""


def is_too_long(sample: Mapping[str, Any]) -> bool:
    """Whether a sample record is that of a prompt that did not fit: a generated one has at least its end token."""
    return sample["n_tokens"] == 0 and sample["finish_reason"] == "length"


def count_too_long(samples: Iterable[Mapping[str, Any]]) -> int:
    """Documents whose prompt did not fit, of a task's sample records."""
    return len({sample["doc_id"] for sample in samples if is_too_long(sample)})


def fault(too_long: Mapping[str, int], prompts: Mapping[str, int], context: int) -> str | None:
    """The error, if prompts of a task (counts by task name) that do not fit are more than ``REFUSED_ABOVE``."""
    found = [_phrase(t, n, prompts[t], context) for t, n in too_long.items() if n > REFUSED_ABOVE * prompts[t]]
    if not found:
        return None
    return f"{'; '.join(found)}: use a model with a longer context, or leave the task out of --tasks"


def look_over(too_long: Mapping[str, int], prompts: Mapping[str, int], context: int, reporter: Reporter) -> None:
    """Warn of prompts that do not fit, one line a task.

    Raises:
        ResetError: they are more than ``REFUSED_ABOVE`` of a task; names tasks, counts and context.
    """
    if (error := fault(too_long, prompts, context)) is not None:
        raise ResetError(error)
    for task, n in too_long.items():
        if n:
            reporter.warn(f"{_phrase(task, n, prompts[task], context)}; their samples have no text and score 0")


def _phrase(task: str, n: int, of: int, context: int) -> str:
    prompts = f"{of} prompt{'s' * (of != 1)} {'does' if n == 1 else 'do'}"
    return f"task {task}: {n} of {prompts} not fit the model's context of {context} tokens"
