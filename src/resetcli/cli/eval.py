"""``reset eval``: parses, calls ``evaluation.evaluate.run_eval``, prints the scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from resetcli.base.errors import ResetError, UsageError
from resetcli.cli import options as o
from resetcli.cli.loading import EngineChoice, PolicyOptions, load
from resetcli.cli.output import Output, table
from resetcli.cli.scores import render

Repeats = Annotated[
    int | None,
    typer.Option(
        "--repeats", min=1, metavar="K", show_default=False,
        help="Samples of each document (avg@K); left out: 1, or what a group sets. May be raised later.",
    ),
]  # fmt: skip


def evaluate(
    *,
    checkpoint: o.Checkpoint = None,
    tasks: o.Tasks = None,
    list_tasks: o.ListTasks = False,
    output: o.Output = None,
    data_dir: o.DataDir = None,
    gpqa_password: o.GpqaPassword = None,
    lcb_release: o.LcbRelease = None,
    lcb_from: o.LcbFrom = None,
    lcb_to: o.LcbTo = None,
    allow_code_execution: o.AllowCode = False,
    limit: o.Limit = None,
    doc_ids: o.DocIds = None,
    repeats: Repeats = None,
    max_new_tokens: o.MaxNewTokens = None,
    thinking: o.Thinking = True,
    thought_start: o.ThoughtStart = None,
    thought_end: o.ThoughtEnd = None,
    policy: o.Policy = None,
    tau0: o.Tau0 = None,
    t_low: o.TLow = None,
    t_high: o.THigh = None,
    window: o.Window = None,
    estimator: o.Estimator = None,
    temperature: o.Temperature = None,
    top_p: o.TopP = None,
    top_k: o.TopK = None,
    min_p: o.MinP = None,
    config: o.Config = None,
    engine: o.Engine = "transformers",
    device: o.Device = None,
    dtype: o.Dtype = None,
    batch_size: o.BatchSize = 8,
    batch_invariant: o.BatchInvariant = None,
    activations: o.Activations = "w4a4",
    trust_remote_code: o.TrustRemoteCode = False,
    max_failed: o.MaxFailed = 0.25,
    gzip: o.Gzip = False,
    seed: o.Seed = 0,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Evaluation through lm-eval, resumable.

    Tasks: aime (120 problems), aime22 to aime25, gpqa (Diamond), math500, gsm8k, livecodebench (runs what the model
    wrote, so it needs --allow-code-execution), wikitext (perplexity), own (bundled simple problems). Each sample is on
    the disk before the next is begun; the same command goes on where a run was stopped, and shows the results of a
    finished one; with more --repeats it makes what is missing. Without -o: ./reset-runs/<model>-<tasks>-<hash>. Group
    paper: aime, gpqa and livecodebench with the paper's settings (8 repeats, top-p 0.95, 32768 tokens), which other
    options override.

    \b
    Examples:
      reset eval --tasks own --limit 2 --max-new-tokens 64
      reset eval --tasks aime,gpqa --data-dir data --repeats 4
      reset eval --tasks livecodebench --data-dir data --lcb-from 2024-10 --allow-code-execution
      reset eval --list-tasks
    """
    out = Output(json=json, quiet=quiet, debug=debug)
    if list_tasks:
        out.result(*task_list())
        return
    if tasks is None:
        raise UsageError("missing option --tasks A,B (`reset eval --list-tasks` shows the tasks)")
    choice = PolicyOptions(
        policy, estimator, tau0, t_low, t_high, window, temperature, top_p, top_k, min_p, config
    )  # fmt: skip
    from resetcli.data.livecodebench import Selection as LcbSelection
    from resetcli.data.sources import DataSource
    from resetcli.engines.thoughts import resolve_markers
    from resetcli.evaluation.code.permission import require_permission
    from resetcli.evaluation.evaluate import run_eval
    from resetcli.evaluation.selection import Selection, parse_doc_ids
    from resetcli.evaluation.tasks import resolve_group, resolve_tasks
    from resetcli.evaluation.tasks.documents import documents

    resolve_markers(None, thought_start, thought_end)
    specs, group = resolve_tasks(tasks), resolve_group(tasks)
    selection = Selection(limit, parse_doc_ids(doc_ids))
    runs = EngineChoice(engine, device, dtype, batch_size, batch_invariant, activations, trust_remote_code)
    require_permission(specs, allow_code_execution)
    source = DataSource.resolve(data_dir, gpqa_password, LcbSelection.parse(lcb_release, lcb_from, lcb_to))
    # Read now and kept by the source: missing data is told before a checkpoint may have to be made.
    selection.indices({spec.name: documents(spec.name, source)[0] for spec in specs})
    model = load(checkpoint, out.reporter, config=config)
    settings = {
        spec.name: model.settings(choice, out.reporter if i == 0 else _silent(), task=spec.name)
        for i, spec in enumerate(specs)
    }
    if group is not None and top_p is None:
        settings = {task: replace(s, top_p=group.top_p) if s.uses("top_p") else s for task, s in settings.items()}
    results = run_eval(
        runs.opener(model, out.reporter),
        [spec.name for spec in specs],
        source,
        settings,
        model=model.name,
        fingerprint=model.fingerprint,
        engine_options=runs.record(),
        limit=limit,
        doc_ids=selection.doc_ids,
        repeats=repeats or (group.repeats if group is not None else 1),
        seed=seed,
        max_new_tokens=max_new_tokens or (group.max_new_tokens if group is not None else model.token_limit),
        thinking=thinking,
        think_markers=resolve_markers(model.path, thought_start, thought_end),
        output=output.expanduser() if output is not None else None,
        packed=gzip,
        max_failed=max_failed,
        allow_code=allow_code_execution,
        reporter=out.reporter,
    )
    out.result(results, lambda: render(results, out))
    if results["error"] is not None:
        raise ResetError(results["error"])


def task_list() -> tuple[dict[str, Any], str]:
    """The tasks and groups there are, as a document and as text."""
    from resetcli.evaluation.tasks import GROUPS, TASKS

    rows = [[spec.name, spec.kind, spec.version, spec.title] for spec in TASKS.values()]
    groups = [[group.name, ", ".join(group.tasks), group.title] for group in GROUPS.values()]
    document = {
        "tasks": [{"name": s.name, "kind": s.kind, "version": s.version, "title": s.title} for s in TASKS.values()],
        "groups": [
            {
                "name": g.name, "tasks": list(g.tasks), "title": g.title, "repeats": g.repeats, "top_p": g.top_p,
                "max_new_tokens": g.max_new_tokens,
            }
            for g in GROUPS.values()
        ],
    }  # fmt: skip
    text = table(("task", "answers", "version", "what"), rows) + "\n\n" + table(("group", "tasks", "what"), groups)
    return document, text


def _silent() -> Any:
    from resetcli.base.reporting import Reporter

    return Reporter()
