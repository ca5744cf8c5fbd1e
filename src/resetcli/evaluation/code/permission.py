"""Running what a model wrote needs a yes, and the user is told beforehand what would not be contained."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from resetcli.base.errors import UsageError
from resetcli.base.reporting import Reporter
from resetcli.evaluation.tasks import TaskSpec

VARIABLE = "RESET_ALLOW_CODE_EXECUTION"
"""Set to 1, stands for the option where there is none, as in lm-eval's own command."""


def require_permission(specs: Iterable[TaskSpec], allowed: bool) -> None:
    """Refuse tasks whose scoring runs programs, unless ``allowed``.

    Raises:
        UsageError: one line that names the task and the option.
    """
    names = [spec.name for spec in specs if spec.kind == "code"]
    if names and not allowed:
        raise UsageError(
            f"scoring {', '.join(names)} runs programs that the model wrote; pass --allow-code-execution to run them "
            "in a sandbox (docs/livecodebench.md says what it stops), or leave the task out"
        )


def allowed_by_environment() -> bool:
    """Whether ``VARIABLE`` says yes."""
    return os.environ.get(VARIABLE) == "1"


def tell(docs: Mapping[str, list[dict[str, Any]]], reporter: Reporter) -> None:
    """Start a sandbox once, say what it does not contain here, and which problems have no private tests.

    Args:
        docs: documents of the tasks whose scoring runs programs.

    Raises:
        SandboxError: it does not start.
    """
    if not docs:
        return
    from resetcli.evaluation.code.sandbox import containment

    found = containment()
    if found.gaps:
        why = "; ".join(f"{name}: {reason}" for name, reason in found.missing.items())
        reporter.warn(f"programs are not fully contained here: they can {', '.join(found.gaps)} ({why})")
    for task, rows in docs.items():
        if few := sum(not row["private"] for row in rows):
            reporter.warn(
                f"task {task}: {few} of {len(rows)} problems have public tests only, so passing them says less than "
                "the benchmark's score"
            )
