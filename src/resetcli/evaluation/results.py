"""What ``results.json`` holds, made from the samples, and what a run reports beside it.

Ours is a function of the samples alone, whatever order and sittings they came in, so it can be made again and
compared with a ``results.json`` found on the disk. lm-eval's keys stay where lm-eval puts them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.base.reporting import Reporter
from resetcli.evaluation import failures, fit
from resetcli.evaluation.runs import RunFolder
from resetcli.evaluation.selection import Documents, Selection
from resetcli.evaluation.statistics import task_statistics
from resetcli.evaluation.tasks import TaskSpec


def own_results(
    folder: RunFolder, spec: TaskSpec, docs: Documents, repeats: int, selection: Selection
) -> dict[str, Any]:
    """Our keys of one task (design 1.4)."""
    if spec.kind == "perplexity":
        own = _perplexity(list(folder.of_task(spec.name)), docs[spec.name])
    else:
        own = task_statistics(folder.of_task(spec.name), repeats)
        own["empty"] = sum(sample["empty"] for sample in folder.of_task(spec.name))
        own["prompts_too_long"] = fit.count_too_long(folder.of_task(spec.name))
    return {**own, "limited": selection.limited}


def results_are_of(
    folder: RunFolder, found: Any, specs: Sequence[TaskSpec], docs: Documents, repeats: int, selection: Selection
) -> bool:
    """Whether ``found`` (any JSON value) is this run's ``results.json``: our keys are what its samples give."""
    tasks = found.get("results") if isinstance(found, dict) else None
    if not isinstance(tasks, dict) or list(tasks) != [spec.name for spec in specs]:
        return False
    context = (folder.header or {}).get("engine", {}).get("context")
    if found.get("limit") != selection.limit or found.get("doc_ids") != selection.named:
        return False
    if found.get("context") != context or not isinstance(found.get("timing"), dict):
        return False
    for spec in specs:
        task, own = tasks[spec.name], own_results(folder, spec, docs, repeats, selection)
        if not isinstance(task, dict) or any(task.get(key) != value for key, value in own.items()):
            return False
    return True


def all_results(
    values: Mapping[str, Any],
    specs: Sequence[TaskSpec],
    docs: Documents,
    folder: RunFolder,
    repeats: int,
    selection: Selection,
    context: int,
) -> dict[str, Any]:
    """``results.json`` without timing: lm-eval's ``values`` with ours."""
    merged: dict[str, Any] = {}
    for spec in specs:
        theirs = {k: v for k, v in values["results"][spec.name].items() if k != "name"}
        merged[spec.name] = {**theirs, **own_results(folder, spec, docs, repeats, selection)}
    kept = {k: values[k] for k in ("versions", "n-shot", "higher_is_better", "n-samples") if k in values}
    configs = {name: _plain_config(config) for name, config in values.get("configs", {}).items()}
    return {
        "results": merged, "limit": selection.limit, "doc_ids": selection.named, "context": context,
        **_jsonable(kept), "configs": configs,
    }  # fmt: skip


def _perplexity(samples: list[dict[str, Any]], docs: list[dict[str, Any]]) -> dict[str, Any]:
    """Perplexities of the texts together: exp of minus the log-likelihood per word, byte and token.

    Words and bytes as lm-eval counts them: pieces between white space of each text, and UTF-8 bytes.
    """
    nats = -math.fsum(s["score"] for s in samples)
    words = sum(len(re.split(r"\s+", doc["text"])) for doc in docs)
    size = sum(len(doc["text"].encode()) for doc in docs)
    tokens = sum(s["n_tokens"] for s in samples)
    if not tokens or nats / min(words, tokens) > 700:
        raise ResetError(f"a log-likelihood of {-nats:.6g} nats over {tokens} tokens has no perplexity; see the model")
    return {
        "n": len(samples), "repeats": 1, "word_perplexity": math.exp(nats / words),
        "byte_perplexity": math.exp(nats / size), "token_perplexity": math.exp(nats / tokens),
        "bits_per_byte": nats / size / math.log(2), "tokens": tokens, "words": words, "bytes": size,
    }  # fmt: skip


def _plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A task's configuration without the source text of functions, which lm-eval puts in."""
    dropped = ("custom_dataset", "process_results", "fewshot_config")
    return _jsonable({k: v for k, v in config.items() if k not in dropped})


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def report(
    folder: RunFolder, results: dict[str, Any], expected: int, max_failed: float, *, finished_before: bool
) -> dict[str, Any]:
    """What ``run_eval`` returns: the results, and whether they can be relied on."""
    faults = (_failures(folder, folder.failed, results), _empty(folder, expected, max_failed), _too_long(results))
    error = "; ".join(filter(None, faults))
    return {
        **results, "run": str(folder.path), "finished_before": finished_before, "failed": folder.failed,
        "error": error or None, "exit_code": 1 if error else 0,
    }  # fmt: skip


def _failures(folder: RunFolder, failed: int, results: Mapping[str, Any]) -> str | None:
    if not failed:
        return None
    counts = ((name, task.get("errors", 0)) for name, task in results["results"].items())
    tasks = ", ".join(f"{name} {n}" for name, n in counts if n)
    return (
        f"{failed} of {len(folder.samples)} samples failed and score 0, as their logits were not finite ({tasks}), in "
        f"run {folder.path}: mend the model or its settings; the same command makes these samples again"
    )


def _empty(folder: RunFolder, expected: int, max_failed: float) -> str | None:
    samples = folder.samples
    if not samples.empty or not failures.too_many(samples, expected, max_failed):
        return None
    return (
        f"{failures.counts(samples)}, more than --max-failed {max_failed:g} of the run allows: see the texts in "
        f"{folder.file}, the chat template and the settings"
    )


def warn_of_prompts(results: Mapping[str, Any], reporter: Reporter) -> None:
    """Say again, of a finished run, which prompts did not fit."""
    if _too_long(results) is None:
        fit.look_over(*_prompts(results), results["context"], reporter)


def _too_long(results: Mapping[str, Any]) -> str | None:
    return fit.fault(*_prompts(results), results["context"])


def _prompts(results: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Prompts that did not fit, and all, by task."""
    tasks = {name: task for name, task in results["results"].items() if "prompts_too_long" in task}
    return {n: t["prompts_too_long"] for n, t in tasks.items()}, {n: t["n"] for n, t in tasks.items()}
