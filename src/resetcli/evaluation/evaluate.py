"""One evaluation run from options to ``results.json``.

Cheap checks come first: options, then data, then the folder and its lock; a model is loaded only when something is
left to generate. lm-eval's evaluator drives the tasks through our adapter, and each sample is scored and on the
disk before the next is asked for. ``evaluator.evaluate`` is called rather than ``simple_evaluate``: the latter adds
a dump of the machine to the results (three seconds of subprocesses, different on every machine) and reseeds three
global generators that no sample of ours reads. lm-eval's result keys stay where lm-eval puts them; our statistics
join them in each task's object.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resetcli.base.errors import UsageError
from resetcli.base.reporting import Reporter
from resetcli.base.versions import versions
from resetcli.engines.protocol import Engine
from resetcli.engines.thoughts import DEFAULT as THINK_MARKERS
from resetcli.evaluation.code.permission import require_permission, tell
from resetcli.evaluation.failures import MAX_FAILED
from resetcli.evaluation.published import publish, publish_report
from resetcli.evaluation.results import all_results, report, results_are_of, warn_of_prompts
from resetcli.evaluation.runs import RESULTS, RunFolder, default_directory
from resetcli.evaluation.samples import Asked
from resetcli.evaluation.selection import Documents, Selection, parse_doc_ids
from resetcli.evaluation.tasks import TaskSpec, resolve_tasks
from resetcli.policy.settings import PolicySettings

if TYPE_CHECKING:
    from resetcli.data.sources import DataSource
    from resetcli.evaluation.recorder import RunRecorder

DEFAULT_MAX_NEW_TOKENS = 32768
PERPLEXITY_WINDOW = 2048


def run_eval(
    engine_factory: Callable[[], Engine],
    tasks: str | Iterable[str],
    source: DataSource,
    settings: PolicySettings | Mapping[str, PolicySettings],
    *,
    model: str,
    fingerprint: str,
    engine_options: Mapping[str, Any] | None = None,
    limit: int | None = None,
    doc_ids: str | Iterable[str] | None = None,
    repeats: int = 1,
    seed: int = 0,
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
    thinking: bool = True,
    think_markers: tuple[str, str] = THINK_MARKERS,
    perplexity_window: int = PERPLEXITY_WINDOW,
    output: Path | None = None,
    packed: bool = False,
    max_failed: float = MAX_FAILED,
    allow_code: bool = False,
    close_engine: bool = True,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Evaluate, or go on with a run begun before, or report a finished one. Failed samples are made again.

    Args:
        engine_factory: opens the engine; called only if there is something to generate.
        tasks: names, with commas or as a list.
        settings: the policy, one for all tasks or by task name (T_low may differ by task).
        model, fingerprint: name and fingerprint of the model, known before it is loaded.
        engine_options: choices that change samples (engine, device, dtype, activations ...), part of the settings.
        limit: the first documents of each task only; None is all. The run is marked.
        doc_ids: the documents of these ids only; None is all. The run is marked.
        repeats: samples of each document; perplexity needs one. More than a run was begun with are added to it.
        max_new_tokens: token limit of a sample, further limited by the context.
        think_markers: what opens and closes a thought (see `engines.thoughts`); part of the settings.
        perplexity_window: tokens that a window of ``wikitext`` holds.
        output: the run's folder; None is ``runs.default_directory``.
        packed: keep the samples of a new run in a gzip file.
        max_failed: share of samples that may fail or be empty; more of them end the run (see `failures`).
        allow_code: programs in outputs may be run, in the sandbox; without it a task that needs this is refused.
        close_engine: close what the factory opened at the end, however it comes.

    Returns:
        What ``results.json`` holds, and beside it "run" (the folder), "finished_before" (nothing was left to do),
        "failed" (samples lost to NaN logits), "error" (one line on why the results cannot be relied on: failed
        or empty samples, or prompts that mostly do not fit; else None) and "exit_code" (1 with an error).

    Raises:
        UsageError: an option out of range or an unknown task.
        ResetError: data, folder, model or grader; what was finished is on the disk and the same call goes on.
    """
    reporter = reporter or Reporter()
    specs = resolve_tasks(tasks)
    _check_numbers(limit=limit, repeats=repeats, max_new_tokens=max_new_tokens, seed=seed, window=perplexity_window)
    if not 0 <= max_failed <= 1:
        raise UsageError(f"--max-failed must be a share from 0 to 1, not {max_failed}")
    selection = Selection(limit, parse_doc_ids(doc_ids))
    require_permission(specs, allow_code)
    policies = {s.name: settings if isinstance(settings, PolicySettings) else settings[s.name] for s in specs}
    for policy in policies.values():
        policy.validate()

    from resetcli.evaluation.tasks.documents import documents

    found = {spec.name: documents(spec.name, source) for spec in specs}
    chosen_rows = selection.indices({task: rows for task, (rows, _) in found.items()})
    docs: Documents = {task: [found[task][0][i] for i in places] for task, places in chosen_rows.items()}
    described: dict[str, dict[str, Any]] = {
        s.name: {"version": s.version, "data_sha256": found[s.name][1], "documents": len(docs[s.name])} for s in specs
    }
    for spec in specs:
        if spec.kind == "code":
            described[spec.name]["selection"] = source.lcb.describe()
    chosen = {
        "model_fingerprint": fingerprint, "tasks": described,
        "policy": {name: policy.header() for name, policy in policies.items()},
        "max_new_tokens": max_new_tokens, "limit": limit, "doc_ids": selection.named, "seed": seed,
        "thinking": thinking, "think_markers": list(think_markers), "perplexity_window": perplexity_window,
        "engine_options": dict(engine_options or {}),
    }  # fmt: skip
    path = Path(output) if output is not None else default_directory(model, list(docs), chosen)
    asked = Asked(
        targets={s.name: {doc["doc_id"]: doc.get("target") for doc in docs[s.name]} for s in specs},
        repeats={s.name: 1 if s.kind == "perplexity" else repeats for s in specs},
        scored=frozenset(s.name for s in specs if s.kind != "perplexity"),
        seed=seed,
    )

    with RunFolder(path, chosen, asked, repeats=repeats, packed=packed) as folder:
        finished = len(folder.samples) == len(asked)
        before = folder.results() if finished else None
        if finished and not results_are_of(folder, before, specs, docs, repeats, selection):
            if (path / RESULTS).exists():
                reporter.warn(f"{path / RESULTS} is not what the samples say; it is made again")
            before = None
        if before is not None and not folder.failed:
            reporter.info(f"run {path} is finished; these are its results")
            warn_of_prompts(before, reporter)
            publish_report(path, reporter, missing_only=True)
            return report(folder, before, len(asked), max_failed, finished_before=True)
        if folder.samples:
            line = f"run {path} goes on: {len(folder.samples) - folder.failed} of {len(asked)} samples are there"
            reporter.info(line + (f", {folder.failed} that failed are made again" if folder.failed else ""))
        started = time.monotonic()
        from resetcli.evaluation.recorder import RunRecorder

        tell({s.name: docs[s.name] for s in specs if s.kind == "code"}, reporter)
        engine = engine_factory()
        try:
            _open_run(folder, engine, model, policies, docs, reporter)
            folder.raise_repeats()
            folder.forget_failed()
            recorder = RunRecorder(
                folder, engine, specs, policies, repeats, len(asked), think_markers, reporter, max_failed, allow_code
            )
            values = _with_lm_eval(
                engine, specs, source, policies, recorder, reporter, places=chosen_rows, repeats=repeats, seed=seed,
                max_new_tokens=max_new_tokens, thinking=thinking, think_markers=think_markers,
                perplexity_window=perplexity_window,
            )  # fmt: skip
        finally:
            if close_engine:
                engine.close()
        results = all_results(values, specs, docs, folder, repeats, selection, engine.info.context)
        seconds = time.monotonic() - started
        results["timing"] = {
            "seconds": seconds,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "samples_made": recorder.made,
            "tokens_made": recorder.tokens,
            "bookkeeping_seconds": recorder.bookkeeping,
            "tokens_per_s": recorder.tokens / recorder.seconds if recorder.seconds else None,
            "tasks": {
                task: {**spent, "tokens_per_s": spent["tokens"] / spent["seconds"] if spent["seconds"] else None}
                for task, spent in recorder.by_task.items()
            },
            "versions": versions(),
        }
        folder.finish(results)
        publish(folder.path, values, folder.header or {}, results["timing"], reporter)
        return report(folder, results, len(asked), max_failed, finished_before=False)


def _check_numbers(*, limit: int | None, repeats: int, max_new_tokens: int, seed: int, window: int) -> None:
    if limit is not None and limit < 1:
        raise UsageError(f"--limit must be at least 1, not {limit}; leave it out for all documents")
    if repeats < 1:
        raise UsageError(f"--repeats must be at least 1, not {repeats}")
    if max_new_tokens < 1:
        raise UsageError(f"--max-new-tokens must be at least 1, not {max_new_tokens}")
    if seed < 0:
        raise UsageError(f"--seed must be at least 0, not {seed}")
    if window < 2:
        raise UsageError(f"the perplexity window must be at least 2 tokens, not {window}")


def _open_run(
    folder: RunFolder,
    opened: Engine,
    model: str,
    policies: Mapping[str, PolicySettings],
    docs: Documents,
    reporter: Reporter,
) -> None:
    """Write ``run.json``, or see that the engine is the one it names."""
    info = opened.info
    engine = {
        "engine": info.engine, "device": info.device, "dtype": info.dtype, "nvfp4": info.nvfp4, "context": info.context,
        "batch_invariant": info.batch_invariant, "activations": info.details.get("activations"),
        # Generation settings beside the weights, which the fingerprint leaves out, decide what ends a text.
        "end_ids": sorted(getattr(opened, "end_ids", ())),
    }  # fmt: skip
    conditions = {"versions": versions(), "threads": info.details.get("threads"), "batch_size": info.batch_size}
    if folder.header is not None:
        # Runs begun by a version that did not record the end tokens can go on.
        known = folder.header.get("engine", {})
        folder.check("engine", {k: v for k, v in engine.items() if k != "end_ids" or k in known})
        then = folder.header.get("conditions", {})
        # With batch invariance the batch size does not matter; elsewhere nothing is bit-equal anyway.
        changed = [key for key in ("versions", "threads") if then.get(key) != conditions[key]]
        if changed:
            reporter.warn(f"run {folder.path} was begun with other {' and '.join(changed)}; samples may differ in bits")
        return
    keys = ("temperature", "t_low", "t_high", "top_p", "top_k", "min_p")
    sampling = {name: {k: v for k, v in p.header().items() if k in keys} for name, p in policies.items()}
    folder.begin(
        {
            "run": 1,
            "model": {"name": model, "path": info.path, "fingerprint": info.fingerprint},
            "policy": next(iter(policies.values())).header(),
            "sampling": {"max_new_tokens": folder.settings["max_new_tokens"], "by_task": sampling},
            "seed": folder.settings["seed"],
            "tasks": folder.settings["tasks"],
            # What else is right: with it samples can be scored again without the data (`reset score`).
            "alt_answers": {
                task: {str(row["doc_id"]): row["alt_answers"] for row in rows if row.get("alt_answers")}
                for task, rows in docs.items()
            },
            "limited": folder.settings["limit"] is not None or folder.settings["doc_ids"] is not None,
            "batch_invariant": info.batch_invariant,
            "engine": engine,
            "conditions": conditions,
            "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    )


def _with_lm_eval(
    engine: Engine,
    specs: list[TaskSpec],
    source: DataSource,
    policies: Mapping[str, PolicySettings],
    recorder: RunRecorder,
    reporter: Reporter,
    *,
    places: dict[str, list[int]],
    repeats: int,
    seed: int,
    max_new_tokens: int,
    thinking: bool,
    think_markers: tuple[str, str],
    perplexity_window: int,
) -> dict[str, Any]:
    """lm-eval's results; samples go to ``recorder`` on the way."""
    with _quiet_lm_eval():
        from lm_eval.evaluator import evaluate

        from resetcli.evaluation.lm import ResetLM
        from resetcli.evaluation.tasks.build import build_task

        lm = ResetLM(
            engine=engine, settings=policies, recorder=recorder, reporter=reporter, seed=seed, thinking=thinking,
            max_gen_toks=max_new_tokens, max_length=perplexity_window, think_start_token=think_markers[0],
            think_end_token=think_markers[1],
        )  # fmt: skip
        built = {s.name: build_task(s, source, repeats=repeats, max_new_tokens=max_new_tokens) for s in specs}
        with reporter.phase("evaluate", recorder.expected) as advance:
            recorder.advance = advance
            advance(len(recorder.folder.samples))
            return evaluate(lm, {"tasks": built}, samples=places, log_samples=False, apply_chat_template=True)


@contextlib.contextmanager
def _quiet_lm_eval() -> Iterator[None]:
    """lm-eval's log lines and its progress bar for building prompts off; ours take their place."""
    import functools

    import lm_eval.api.task as module

    logger = logging.getLogger("lm_eval")
    level, bar = logger.level, module.tqdm
    logger.setLevel(logging.ERROR)
    module.tqdm = functools.partial(bar, disable=True)
    try:
        yield
    finally:
        logger.setLevel(level)
        module.tqdm = bar
