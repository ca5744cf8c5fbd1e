"""lm-eval's command line with our tasks in place of its own of the same name, and a user's folder above both."""

from __future__ import annotations

import sys
from pathlib import Path

import lm_eval.__main__
import lm_eval.tasks
import pytest

from resetcli.evaluation.lm_eval_main import main
from resetcli.evaluation.tasks import TASK_DIR


@pytest.mark.parametrize("named", [None, str, lambda path: [path]], ids=["no folder", "a folder", "several"])
def test_our_tasks_stand_above_lm_evals_and_a_users_above_ours(named, tmp_path, monkeypatch) -> None:
    """Whichever way lm-eval was told of tasks and a folder; its own 14,000 files are left out here for their time."""
    (tmp_path / "own.yaml").write_text("task: aime22\ndataset_path: x\n")
    found = {}

    def stand_in() -> None:
        folder = None if named is None else named(tmp_path)
        manager = lm_eval.tasks.TaskManager(include_path=folder, include_defaults=False)
        found.update({name: Path(entry.yaml_path) for name, entry in manager.task_index.items() if entry.yaml_path})

    monkeypatch.setattr(lm_eval.__main__, "cli_evaluate", stand_in)
    monkeypatch.setattr(sys, "argv", [])
    before = lm_eval.tasks.TaskManager
    assert main(["run", "--tasks=aime22"]) == 0
    assert found["aime"] == TASK_DIR / "aime.yaml"
    assert found["aime22"] == (TASK_DIR / "aime22.yaml" if named is None else tmp_path / "own.yaml")
    assert lm_eval.tasks.TaskManager is before
