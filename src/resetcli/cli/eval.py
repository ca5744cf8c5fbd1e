"""``reset eval``: parses, calls ``evaluation.evaluate.run_eval``, prints the scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.cli import options as o
from resetcli.cli.loading import EngineChoice, PolicyOptions, load
from resetcli.cli.output import Output, table


def evaluate(
    *,
    checkpoint: o.Checkpoint = None,
    tasks: o.Tasks,
    output: o.Output = None,
    data_dir: o.DataDir = None,
    gpqa_password: o.GpqaPassword = None,
    limit: o.Limit = None,
    repeats: o.Repeats = 1,
    max_new_tokens: o.MaxNewTokens = None,
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
    seed: o.Seed = 0,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Evaluation through lm-eval, resumable.

    Tasks: aime (120 problems), aime22 to aime25, gpqa (Diamond), math500, gsm8k, wikitext (perplexity), own (bundled
    simple problems). Each sample is on the disk before the next is begun; the same command goes on where a run was
    stopped, and shows the results of a finished one. Without -o: ./reset-runs/<model>-<tasks>-<hash>.

    \b
    Examples:
      reset eval --tasks own --limit 2 --max-new-tokens 64
      reset eval --tasks aime,gpqa --data-dir data --repeats 4
    """
    out = Output(json=json, quiet=quiet, debug=debug)
    choice = PolicyOptions(
        policy, estimator, tau0, t_low, t_high, window, temperature, top_p, top_k, min_p, config
    )  # fmt: skip
    from resetcli.data.sources import DataSource
    from resetcli.engines.thoughts import resolve_markers
    from resetcli.evaluation.evaluate import run_eval
    from resetcli.evaluation.tasks import resolve_tasks
    from resetcli.evaluation.tasks.documents import documents

    resolve_markers(None, thought_start, thought_end)
    specs = resolve_tasks(tasks)
    runs = EngineChoice(engine, device, dtype, batch_size, batch_invariant, activations, trust_remote_code)
    source = DataSource.resolve(data_dir, gpqa_password)
    for spec in specs:
        # Read now and kept by the source: missing data is told before a checkpoint may have to be made.
        documents(spec.name, source)
    model = load(checkpoint, out.reporter, config=config)
    settings = {
        spec.name: model.settings(choice, out.reporter if i == 0 else _silent(), task=spec.name)
        for i, spec in enumerate(specs)
    }
    results = run_eval(
        runs.opener(model, out.reporter),
        [spec.name for spec in specs],
        source,
        settings,
        model=model.name,
        fingerprint=model.fingerprint,
        engine_options=runs.record(),
        limit=limit,
        repeats=repeats,
        seed=seed,
        max_new_tokens=max_new_tokens or model.token_limit,
        think_markers=resolve_markers(model.path, thought_start, thought_end),
        output=output.expanduser() if output is not None else None,
        reporter=out.reporter,
    )
    out.result(results, lambda: render(results))
    if results["error"] is not None:
        raise ResetError(results["error"])


def _silent() -> Any:
    from resetcli.base.reporting import Reporter

    return Reporter()


SCORED = ("task", "n", "k", "avg@k", "95 % interval", "pass@k", "maj@k", "truncated", "unparsed", "tokens")
TEXTS = ("task", "texts", "tokens", "word perplexity", "token perplexity", "bits/byte")


def render(results: Mapping[str, Any]) -> str:
    """Scores a task a line, then where the run is."""
    scored, texts = [], []
    for name, task in results["results"].items():
        if "avg@k" in task:
            low, high = task["ci95"]
            scored.append([
                name, task["n"], task["repeats"], percent(task["avg@k"]), f"{percent(low)} to {percent(high)}",
                percent(task["pass@k"]), percent(task["maj@k"]), percent(task["truncated"]), percent(task["unparsed"]),
                f"{task['tokens_mean']:.0f}",
            ])  # fmt: skip
        else:
            texts.append([
                name, task["n"], task["tokens"], task["word_perplexity"], task["token_perplexity"],
                task["bits_per_byte"],
            ])  # fmt: skip
    parts = []
    if scored:
        parts.append(table(SCORED, scored))
    if texts:
        parts.append(table(TEXTS, texts))
    for name, task in results["results"].items():
        if n := task.get("prompts_too_long"):
            parts.append(
                f"{name}: {n} of {task['n']} prompts did not fit the context of {results['context']} tokens; "
                "their samples score 0"
            )
    if results["limit"] is not None:
        parts.append(f"limited to the first {results['limit']} documents of a task: not comparable with full runs")
    speed = results.get("timing", {}).get("tokens_per_s")
    parts.append(f"run {results['run']}" + (f", {speed:.1f} tokens/s" if speed else ""))
    return "\n".join(parts)


def percent(value: float | None) -> str:
    """A share for people."""
    return "-" if value is None else f"{100 * value:.1f} %"
