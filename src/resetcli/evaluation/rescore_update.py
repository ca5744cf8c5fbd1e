"""New verdicts put into a run: its samples in one step, then its results and report made again from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.base.files import read_json, write_json
from resetcli.base.reporting import Reporter
from resetcli.evaluation.published import LM_EVAL_RESULTS, publish_report
from resetcli.evaluation.runs import RUN, RunFolder, repeats_of
from resetcli.evaluation.scoring.score import Score
from resetcli.evaluation.statistics import task_statistics


def update_run(path: Path, scores: Sequence[Score | None], markers: tuple[str, str] | None, reporter: Reporter) -> None:
    """Write ``scores`` (one a line of the run's samples, None leaves a line alone) into the run, and ``markers`` into
    its settings, for what is made later is to be scored alike.

    A finished run gets results made of them; lm-eval's own file, which has the former scores, goes.

    Raises:
        ResetError: another process writes the run, or it changed since it was scored, or the disk is full.
    """
    header = read_json(path / RUN)
    settings = {k: v for k, v in header["settings"].items() if k != "repeats"}
    repeats = repeats_of(header)
    with RunFolder(path, settings, repeats=repeats) as folder:
        if len(folder.samples) != len(scores):
            raise ResetError(f"run {path} was written to while it was scored; score it again")
        results, left = folder.results(), iter(scores)

        def change(sample: dict[str, Any]) -> dict[str, Any]:
            score = next(left)
            if score is None:
                return sample
            found = {"answer": score.answer, "score": score.score, "why": score.why}
            return sample if all(sample[k] == v for k, v in found.items()) else {**sample, **found}

        folder.rewrite(change)
        if markers is not None:
            settings["think_markers"] = list(markers)
            write_json(path / RUN, {**header, "settings": {**header["settings"], "think_markers": list(markers)}})
    if not isinstance(results, dict) or not isinstance(results.get("results"), dict) or repeats is None:
        return
    with RunFolder(path, settings, repeats=repeats) as folder:
        for task, values in results["results"].items():
            if "avg@k" in values:
                values.update(task_statistics(folder.of_task(task), repeats))
                values.update(_of_lm_eval(folder, task, repeats, values))
        results["timing"] = {
            **results.get("timing", {}), "scored_again": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        folder.finish(results)
        (path / LM_EVAL_RESULTS).unlink(missing_ok=True)
        publish_report(path, reporter)


def _of_lm_eval(folder: RunFolder, task: str, repeats: int, values: dict[str, Any]) -> dict[str, Any]:
    """lm-eval's own keys by its own rule: mean of the documents' scores and its standard error."""
    sums: dict[Any, float] = {}
    for sample in folder.of_task(task):
        sums[sample["doc_id"]] = sums.get(sample["doc_id"], 0.0) + sample["score"]
    means = [total / repeats for total in sums.values()]
    n, centre = len(means), math.fsum(means) / len(means)
    made: dict[str, Any] = {"exact_match,score": centre}
    if n > 1:
        made["exact_match_stderr,score"] = math.sqrt(math.fsum((m - centre) ** 2 for m in means) / (n - 1) / n)
    return {key: value for key, value in made.items() if key in values}
