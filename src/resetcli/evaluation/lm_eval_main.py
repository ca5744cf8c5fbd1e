"""``python -m resetcli.evaluation.lm_eval_main``: lm-eval's own command line with our model and tasks registered.

lm-eval 0.4.13 reads no entry points, so a model outside its tree is known only to a process that has imported it.
Two ways lead there. This module takes lm-eval's arguments as they are. And lm-eval's own command finds the model when
our task files are given by path, because it resolves the functions in them before it looks for the model:

    lm_eval run --model reset --model_args pretrained=DIR --apply_chat_template \\
        --tasks "$(python -m resetcli.evaluation.lm_eval_main --tasks-dir)/aime.yaml"

Data comes from RESET_DATA_DIR, else the hub. lm-eval has tasks of some of our names (aime); here ours replace them,
whether an option or a configuration file names them, and those of a folder given by --include_path replace both.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

from resetcli.base.errors import ResetError
from resetcli.evaluation.tasks import TASK_DIR


def main(argv: list[str] | None = None) -> int:
    """Run lm-eval's command line with ``argv``; the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args == ["--tasks-dir"]:
        print(TASK_DIR)
        return 0
    import lm_eval.models
    import lm_eval.tasks
    from lm_eval.__main__ import cli_evaluate

    import resetcli.evaluation.lm

    assert lm_eval.models and resetcli.evaluation.lm

    class WithOurs(lm_eval.tasks.TaskManager):
        """lm-eval's command takes one folder, its task manager any number, the last first in rank."""

        def __init__(self, *args: Any, include_path: Any = None, **kwargs: Any):
            theirs = include_path if isinstance(include_path, (list, tuple)) else [include_path]
            super().__init__(*args, include_path=[TASK_DIR, *filter(None, theirs)], **kwargs)

    sys.argv = ["lm_eval", *args]
    try:
        with mock.patch.object(lm_eval.tasks, "TaskManager", WithOurs):
            cli_evaluate()
    except ResetError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return exc.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
