"""The evaluation tasks by name. Importable without lm-eval or torch, so a wrong name costs no time.

A task is a YAML file beside this module, in lm-eval's own format: prompt, version and metric stand there, and
lm-eval can run the file itself (see ``lm_eval_main``). What must be known before anything heavy is imported stands
here; a test holds the two together. ``aime`` is one task of 120 problems, not a group, so that it has one score
with one interval; a problem has the same document id in ``aime`` and in its year.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from resetcli.base.errors import UsageError, unknown_name

TASK_DIR = Path(__file__).parent

Kind = Literal["math", "letters", "code", "perplexity"]


@dataclass(frozen=True)
class TaskSpec:
    """``kind``: how outputs are scored. ``version`` changes with prompt or documents; runs of two never mix."""

    name: str
    kind: Kind
    version: int
    title: str

    @property
    def yaml(self) -> Path:
        return TASK_DIR / f"{self.name}.yaml"


TASKS: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        TaskSpec("aime", "math", 1, "AIME 2022 to 2025 (120 problems)"),
        TaskSpec("aime22", "math", 1, "AIME 2022 I and II (30 problems)"),
        TaskSpec("aime23", "math", 1, "AIME 2023 I and II (30 problems)"),
        TaskSpec("aime24", "math", 1, "AIME 2024 I and II (30 problems)"),
        TaskSpec("aime25", "math", 1, "AIME 2025 I and II (30 problems)"),
        TaskSpec("gpqa", "letters", 1, "GPQA-Diamond (198 questions, four lettered choices)"),
        TaskSpec("math500", "math", 1, "MATH-500 (500 problems)"),
        TaskSpec("gsm8k", "math", 1, "GSM8K test (1,319 problems)"),
        TaskSpec("livecodebench", "code", 1, "LiveCodeBench code generation (programs, run in a sandbox)"),
        TaskSpec("wikitext", "perplexity", 1, "WikiText-2 test, perplexity by article"),
        TaskSpec("own", "math", 1, "simple problems of our own writing, bundled (for the demo)"),
    )
}


@dataclass(frozen=True)
class TaskGroup:
    """A name for several tasks, with the settings that serve where the caller names no other."""

    name: str
    tasks: tuple[str, ...]
    title: str
    repeats: int
    top_p: float
    max_new_tokens: int


GROUPS: dict[str, TaskGroup] = {
    group.name: group
    for group in (
        TaskGroup(
            "paper", ("aime", "gpqa", "livecodebench"), "as in arXiv 2606.13233: 8 repeats, top-p 0.95, 32,768 tokens",
            repeats=8, top_p=0.95, max_new_tokens=32768,
        ),
    )
}  # fmt: skip


def _names(names: str | Iterable[str]) -> list[str]:
    parts = names.split(",") if isinstance(names, str) else [part for name in names for part in name.split(",")]
    return list(filter(None, (part.strip() for part in parts)))


def resolve_group(names: str | Iterable[str]) -> TaskGroup | None:
    """The first group among the names, whose settings then serve; None without one."""
    return next((GROUPS[name] for name in _names(names) if name in GROUPS), None)


def resolve_tasks(names: str | Iterable[str]) -> list[TaskSpec]:
    """Tasks named by ``"aime,gpqa"`` (spaces and a trailing comma allowed) or a list, groups too; each once, in order.

    Raises:
        UsageError: no name, or one that is unknown ("did you mean").
    """
    found: dict[str, TaskSpec] = {}
    for name in _names(names):
        if name not in TASKS and name not in GROUPS:
            raise unknown_name("task", name, [*TASKS, *GROUPS])
        for task in GROUPS[name].tasks if name in GROUPS else (name,):
            found[task] = TASKS[task]
    if not found:
        raise UsageError(f"--tasks names no task (known: {', '.join(TASKS)})")
    return list(found.values())
