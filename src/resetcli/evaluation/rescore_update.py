"""New verdicts put into a run: its samples in one step, then its results and report made again from them.

A kill at any point leaves a run that the same call finishes. Results that do not fit the samples are seen by whoever
reads them, so they stay until new ones take their place, and the next call has something to make those of. What could
not be seen is that part of the verdicts is by other thought markers than run.json names; so the new ones stand there
before the samples change, with a note ("rescoring") that is refused until they have.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from resetcli.base.errors import UsageError
from resetcli.base.reporting import Reporter
from resetcli.base.versions import installed
from resetcli.evaluation.published import publish_report
from resetcli.evaluation.rescore import RescoredRun, mark, verdict, written_to
from resetcli.evaluation.runs import LM_EVAL_RESULTS, RESCORING, RunFolder, repeats_of
from resetcli.evaluation.statistics import mean, task_statistics


def update_run(found: RescoredRun, reporter: Reporter) -> None:
    """Write the new verdicts into the run, and into run.json the markers that they were made with, for what is made
    later is to be scored alike, and by which version if all of its tasks were scored ("scored_by").

    A finished run gets results made of them; lm-eval's own file, which has the former scores, goes.

    Raises:
        ResetError: another process writes the run, or it changed since it was scored, or the disk is full.
    """
    path = found.path
    settings = {k: v for k, v in found.header["settings"].items() if k != "repeats"}
    with RunFolder(path, settings, repeats=repeats_of(found.header), rescoring=True) as folder:
        if len(folder.samples) != len(found.scores):
            raise written_to(path)
        results = folder.results()
        header: dict[str, Any] = {k: v for k, v in (folder.header or {}).items() if k != RESCORING}
        if found.markers is not None:
            header["settings"] = {**header["settings"], "think_markers": list(found.markers)}
        if found.task is None:
            header["scored_by"] = installed("resetcli")
        left = zip(found.scores, found.marks, strict=True)

        def change(sample: dict[str, Any]) -> dict[str, Any]:
            score, marked = next(left)
            if mark(sample) != marked:
                raise written_to(path)
            if score is None or all(sample[k] == v for k, v in verdict(score).items()):
                return sample
            return {**sample, **verdict(score)}

        def ready() -> None:
            if found.markers is not None:
                folder.amend({**header, RESCORING: True})

        folder.rewrite(change, ready)
        if header != folder.header:
            folder.amend(header)
        if (made := _made_again(folder, header["tasks"], results)) is not None:
            folder.finish(made)
            (path / LM_EVAL_RESULTS).unlink(missing_ok=True)
            publish_report(path, reporter)
        else:
            folder.drop_results()


def _made_again(folder: RunFolder, tasks: dict[str, Any], results: Any) -> dict[str, Any] | None:
    """``results`` with what the samples give now; None if they are not those of this run, finished."""
    entries = results.get("results") if isinstance(results, dict) else None
    if not isinstance(entries, dict) or list(entries) != list(tasks) or folder.repeats is None:
        return None
    made: dict[str, Any] = {}
    for task, values in entries.items():
        if not isinstance(values, dict):
            return None
        made[task] = values
        if "avg@k" in values:
            try:
                own = task_statistics(folder.of_task(task), folder.repeats)
            except UsageError:
                return None  # samples are missing
            if own["n"] != tasks[task].get("documents"):
                return None
            made[task] = {**values, **own, **_of_lm_eval(folder, task, folder.repeats, values)}
    timing = results.get("timing")
    again = {"scored_again": datetime.now(UTC).isoformat(timespec="seconds")}
    return {**results, "results": made, "timing": {**(timing if isinstance(timing, dict) else {}), **again}}


def _of_lm_eval(folder: RunFolder, task: str, repeats: int, values: dict[str, Any]) -> dict[str, Any]:
    """lm-eval's own keys by its own rule: mean of the documents' scores and its standard error."""
    sums: dict[Any, float] = {}
    for sample in folder.of_task(task):
        sums[sample["doc_id"]] = sums.get(sample["doc_id"], 0.0) + sample["score"]
    means = [total / repeats for total in sums.values()]
    n, centre = len(means), mean(means)
    made: dict[str, Any] = {"exact_match,score": centre}
    if n > 1:
        made["exact_match_stderr,score"] = math.sqrt(math.fsum((m - centre) ** 2 for m in means) / (n - 1) / n)
    return {key: value for key, value in made.items() if key in values}
