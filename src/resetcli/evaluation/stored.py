"""A finished run read for comparison: its header, and the samples of each task as a table. Writes and locks nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.files import read_json
from resetcli.base.reporting import Reporter
from resetcli.evaluation.columns import Columns, ScoreTable
from resetcli.evaluation.runs import RESULTS, RUN, read_samples, refuse_half_scored, repeats_of
from resetcli.evaluation.samples import score_fault
from resetcli.evaluation.tasks import TASKS

PRECISIONS = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32"}


@dataclass(frozen=True)
class StoredRun:
    """``tables`` by task, in the run's order; ``results`` what results.json holds, {} without one. ``model`` and
    ``method`` name the run in tables."""

    path: Path
    header: dict[str, Any]
    tables: dict[str, ScoreTable]
    results: dict[str, Any]
    model: str
    method: str

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)

    @property
    def limited(self) -> bool:
        return bool(self.header.get("limited"))

    @property
    def scored_by(self) -> Any:
        """The version of resetcli that scored its samples: the one that began it, or that scored it again."""
        return self.header.get("scored_by", self.header.get("conditions", {}).get("versions", {}).get("resetcli"))

    def task(self, name: str) -> dict[str, Any]:
        """Version, SHA-256 of the data and number of documents, as run.json has them."""
        return self.header["tasks"][name]

    def result(self, *keys: str) -> Any:
        """What results.json has under ``keys``, one in the other; None if it has no such entry."""
        found: Any = self.results
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found


def open_run(path: Path, *, tasks: list[str] | None = None, reporter: Reporter | None = None) -> StoredRun:
    """Read a run's folder; with ``tasks``, only what it has of those.

    Raises:
        ResetError: not a run's folder, a damaged file (named, with its line), or a run that is not finished.
    """
    path = Path(path)
    if not (path / RUN).is_file():
        raise ResetError(f"{path} is not the folder of an evaluation run (no {RUN} in it); name one that `eval` made")
    header = read_json(path / RUN)
    if not _whole(header):
        raise ResetError(f"{path / RUN} is not the record of a run; restore it or evaluate again")
    refuse_half_scored(path, header)
    wanted = [name for name in header["tasks"] if tasks is None or name in tasks]
    if unknown := [name for name in wanted if name not in TASKS]:
        raise ResetError(f"run {path} has tasks that this version does not know: {', '.join(unknown)}; use --tasks")
    if not header["tasks"]:
        raise ResetError(f"{path / RUN} names no task; restore it or evaluate again")
    columns = {name: Columns() for name in wanted}
    with (reporter or Reporter()).phase(f"read {path.name}"):
        for sample in read_samples(path):
            if (column := columns.get(sample["task"])) is None:
                continue
            if TASKS[sample["task"]].kind != "perplexity" and (fault := score_fault(sample)) is not None:
                place = f"document {sample['doc_id']}, repeat {sample['repeat']}"
                raise ResetError(f"run {path}, {place}: {fault}; restore its samples or evaluate again")
            column.add(sample)
    repeats = repeats_of(header)
    tables = {name: _table(path, header, name, column, repeats) for name, column in columns.items()}
    results = read_json(path / RESULTS) if (path / RESULTS).is_file() else {}
    return StoredRun(
        path, header, tables, results if isinstance(results, dict) else {}, _model(header), _method(header)
    )


def _whole(header: Any) -> bool:
    """Whether run.json has what is read of it here, whoever wrote or edited it."""
    if not isinstance(header, dict) or header.get("run") != 1:
        return False
    if not all(isinstance(header.get(key), dict) for key in ("settings", "tasks", "model", "policy")):
        return False
    if not all(isinstance(header.get(key, {}), dict) for key in ("engine", "conditions")):
        return False
    if not isinstance(header.get("conditions", {}).get("versions", {}), dict):
        return False
    tasks = header["tasks"].values()
    return isinstance(header["model"].get("name"), str) and all(
        isinstance(task, dict) and isinstance(task.get("documents"), int) for task in tasks
    )


def _table(path: Path, header: dict[str, Any], task: str, columns: Columns, repeats: int | None) -> ScoreTable:
    k = 1 if TASKS[task].kind == "perplexity" else repeats or columns.most_repeats
    expected = header["tasks"][task]["documents"] * k
    if not expected or len(columns) != expected:
        raise ResetError(
            f"run {path} is not finished: {len(columns)} of {expected or 'its'} samples of task {task} are there; the "
            "command that began it makes the rest"
        )
    try:
        return columns.table(k)
    except UsageError as exc:
        raise ResetError(f"run {path}, task {task}: {exc}; evaluate again") from exc


def _model(header: dict[str, Any]) -> str:
    """The model's name without what marks a checkpoint made of it, so that both stand under one name."""
    return re.sub(r"[-_.](nvfp4|bf16|fp16)\b.*$", "", header["model"]["name"], flags=re.IGNORECASE)


def _method(header: dict[str, Any]) -> str:
    engine = header.get("engine", {})
    precision = "NVFP4" if engine.get("nvfp4") else PRECISIONS.get(str(engine.get("dtype")), str(engine.get("dtype")))
    if engine.get("nvfp4") and engine.get("activations") == "w4a16":
        precision += " W4A16"
    return f"{precision} {header['policy'].get('name')}"
