"""Runs against each other: which may be compared, the paired figures of two, and the rows of a table of many.

Two runs are compared document by document, so they must have asked the very same: task, version, data, documents. What
is refused is refused with all its reasons in one line. Everything else that differs between the runs, the policy first
of all, is what the comparison is about and is listed. The figures are made in `paired`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import Reporter
from resetcli.evaluation.paired import compare_pair, compare_perplexity
from resetcli.evaluation.resampling import CONFIDENCE, RESAMPLES, holm
from resetcli.evaluation.statistics import passes, table_statistics
from resetcli.evaluation.stored import StoredRun, open_run
from resetcli.evaluation.tasks import TASKS, resolve_tasks

SAME_FOR_FAIRNESS = ("max_new_tokens", "thinking")
"""Settings whose difference is probably not what one wants to measure."""


def compare_runs(
    paths: Sequence[Path],
    *,
    tasks: str | Iterable[str] | None = None,
    labels: Sequence[str] = (),
    pass_at: int | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Compare finished runs. Of two, the second with the first; of more, each with the base of its model.

    Args:
        paths: the runs' folders.
        tasks: only these; left out, two runs must have the same tasks, and of more each pair has those it shares.
        labels: one a run, "METHOD" or "METHOD@MODEL", in place of what run.json says.
        pass_at: k of an additional pass@k.
        resamples: draws of the bootstrap and of the permutation test.

    Returns:
        {"runs": [{"run", "model", "method", "limited", "tasks": {task: statistics}}], "comparisons": [see
        ``compare_pair``, with "task", "a" and "b" (numbers of the runs from 0), "p_holm" (for all comparisons'
        avg@k)], "differs": [{"name", "values" (one a run)}], "warnings": [...], "confidence", "resamples", "seed"}.

    Raises:
        UsageError: fewer than two runs, one named twice, labels that do not fit, pass@k with k above the repeats.
        ResetError: no run, a run that is not finished, or runs that asked different things (what, by name).
    """
    if len(paths) < 2:
        raise UsageError("compare needs two runs or more; name their folders")
    if len({Path(p).resolve() for p in paths}) < len(paths):
        raise UsageError("a run is named twice; name each once")
    if resamples < 1000:
        raise UsageError(f"--resamples must be at least 1000 for an interval to mean anything, not {resamples}")
    wanted = [spec.name for spec in resolve_tasks(tasks)] if tasks is not None else None
    runs = _labelled([open_run(Path(p), tasks=wanted, reporter=reporter) for p in paths], labels)
    _refuse_differences(runs, wanted)
    comparisons, warnings = [], _warnings(runs)
    for a, b, task in _pairs(runs):
        left, right = runs[a].tables[task], runs[b].tables[task]
        found = {"task": task, "a": a, "b": b}
        if TASKS[task].kind == "perplexity":
            if (left.tokens != right.tokens).any():
                warnings.append(f"{task}: {runs[a].name} and {runs[b].name} count tokens differently; not compared")
                continue
            found |= compare_perplexity(left, right, resamples=resamples, seed=seed)
        else:
            if left.repeats != right.repeats:
                k = min(left.repeats, right.repeats)
                warnings.append(
                    f"{task}: {runs[a].name} has {left.repeats} repeat{'s' * (left.repeats != 1)}, {runs[b].name} "
                    f"{right.repeats}; the comparison takes the first {k} of each document"
                )
            found |= compare_pair(left, right, pass_at=pass_at, resamples=resamples, seed=seed)
        comparisons.append(found)
    for found, p in zip(comparisons, holm([_main(c)["p"] for c in comparisons]), strict=True):
        found["p_holm"] = p
    return {
        "runs": [_described(run, pass_at) for run in runs], "comparisons": comparisons, "differs": _differs(runs),
        "warnings": warnings, "confidence": CONFIDENCE, "resamples": resamples, "seed": seed,
    }  # fmt: skip


def _main(comparison: dict[str, Any]) -> dict[str, Any]:
    """The difference that a comparison is about."""
    return next(iter(comparison["differences"].values()))


def _pairs(runs: Sequence[StoredRun]) -> list[tuple[int, int, str]]:
    """(A, B, task) to compare: of two runs, the second with the first; of more, each with its model's base. That is the
    method of the model's first run, or where that has not the task, the first run that has it."""
    if len(runs) == 2:
        return [(0, 1, task) for task in runs[0].tables if task in runs[1].tables]
    found = []
    for b, run in enumerate(runs):
        base = next(other.method for other in runs if other.model == run.model)
        for task in run.tables:
            having = [i for i, other in enumerate(runs) if other.model == run.model and task in other.tables]
            a = next((i for i in having if runs[i].method == base), having[0])
            if a != b:
                found.append((a, b, task))
    return found


def _refuse_differences(runs: Sequence[StoredRun], wanted: Sequence[str] | None) -> None:
    """Refuse runs that asked different things; the error lists all of it."""
    faults = []
    for task in dict.fromkeys(t for run in runs for t in run.tables):
        having = [run for run in runs if task in run.tables]
        asked = [(("version", run.task(task).get("version")), ("data", run.task(task).get("data_sha256")),
                  ("documents", run.tables[task].docs)) for run in having]  # fmt: skip
        for i, (what, first) in enumerate(asked[0]):
            for run, other in zip(having[1:], asked[1:], strict=True):
                if other[i][1] != first:
                    was, now = _brief(what, first), _brief(what, other[i][1])
                    if what == "documents" and was == now:
                        docs = having[0].tables[task].docs, run.tables[task].docs
                        was, now = f"{was}, with {_one_more(*docs)}", f"{now}, with {_one_more(*docs[::-1])}"
                    values = f"{was} in {having[0].path}, {now} in {run.path}"
                    faults.append(f"task {task}: {what} ({values})")
        if len(runs) == 2 and len(having) == 1:
            faults.append(f"task {task}: in {having[0].path} only")
    absent = [task for task in wanted or () if all(task not in run.tables for run in runs)]
    faults += [f"task {task}: in none of the runs" for task in absent]
    if faults:
        raise ResetError(
            f"the runs cannot be compared: {'; '.join(faults)}; evaluate them alike, or name what they share by --tasks"
        )


def _one_more(docs: Sequence[Any], others: Sequence[Any]) -> Any:
    """The first document that is not among the others."""
    return next((doc for doc in docs if doc not in others), "none more")


def _brief(what: str, value: Any) -> str:
    if what == "documents":
        return f"{len(value)}, {value[0]} to {value[-1]}" if value else "none"
    return str(value)[:8] if what == "data" else str(value)


def _labelled(runs: list[StoredRun], labels: Sequence[str]) -> list[StoredRun]:
    """The runs under the names given, each (model, method, task) once: where names fall together, the folder is added.

    Raises:
        UsageError: labels, but not one a run, or an empty one.
    """
    if labels:
        if len(labels) != len(runs):
            raise UsageError(f"--labels names {len(labels)} runs, but there are {len(runs)}; give one label a run")
        parts = [label.strip().partition("@") for label in labels]
        if not all(method.strip() for method, _, _ in parts):
            raise UsageError("--labels has an empty name; give METHOD or METHOD@MODEL for each run")
        runs = [
            replace(run, method=method.strip(), model=model.strip() or run.model)
            for run, (method, _, model) in zip(runs, parts, strict=True)
        ]
    found = []
    for run in runs:
        alike = [r for r in runs if (r.model, r.method) == (run.model, run.method) and r is not run]
        if any(set(r.tables) & set(run.tables) for r in alike):
            name = run.name if all(r.name != run.name for r in alike) else str(run.path)
            run = replace(run, method=f"{run.method} ({name})")
        found.append(run)
    return found


def _described(run: StoredRun, pass_at: int | None) -> dict[str, Any]:
    tasks: dict[str, Any] = {}
    for name, table in run.tables.items():
        if TASKS[name].kind == "perplexity":
            perplexity = math.exp(-float(table.score.sum()) / table.tokens.sum())
            word = run.result("results", name, "word_perplexity")
            tasks[name] = {"n": table.n, "token_perplexity": perplexity, "word_perplexity": word}
        else:
            tasks[name] = table_statistics(table)
            if pass_at is not None:
                tasks[name]["pass@"][str(pass_at)] = float(passes(table, pass_at).mean())
        # Of the last sitting that made samples.
        tasks[name]["tokens_per_s"] = run.result("timing", "tasks", name, "tokens_per_s")
    return {
        "run": str(run.path), "model": run.model, "method": run.method, "limited": run.limited, "tasks": tasks
    }  # fmt: skip


def _warnings(runs: Sequence[StoredRun]) -> list[str]:
    found = []
    for run in runs:
        if run.limited:
            found.append(f"{run.name} has chosen documents of its tasks only: not comparable with full runs")
        for task, table in run.tables.items():
            if n := int(table.failed.sum()):
                found.append(f"{run.name}, {task}: {n} samples failed (logits not finite) and score 0")
    by = [run.scored_by for run in runs]
    if any(version != by[0] for version in by):
        each = (f"{version} ({run.name})" for version, run in zip(by, runs, strict=True))
        found.append(
            f"the runs were scored by other versions: {', '.join(each)}; `score RUN --update` puts this one's scores "
            "into each"
        )
    for key in SAME_FOR_FAIRNESS:
        values = [run.header["settings"].get(key) for run in runs]
        if any(value != values[0] for value in values):
            found.append(
                f"{key} differs: {', '.join(f'{json.dumps(v)} in {r.name}' for v, r in zip(values, runs, strict=True))}"
            )
    return found


def _differs(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Settings and engine, by dotted name, where the runs differ; null where a run has none."""
    flat = [_flat({key: run.header.get(key) for key in ("model", "engine", "settings", "repeats")}) for run in runs]
    names = dict.fromkeys(name for values in flat for name in values if not name.startswith("settings.tasks."))
    rows = [{"name": name, "values": [values.get(name) for values in flat]} for name in names]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    return {k: v for key, part in value.items() for k, v in _flat(part, f"{name}.{key}" if name else key).items()}
