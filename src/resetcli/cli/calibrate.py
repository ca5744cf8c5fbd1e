"""``reset calibrate``: parses, gathers problems and engines, prints what calibration found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from resetcli.base.errors import UsageError
from resetcli.base.reporting import Reporter
from resetcli.cli import options as o
from resetcli.cli.loading import MAX_NEW_TOKENS, EngineChoice, PolicyOptions, load
from resetcli.cli.output import Output, table
from resetcli.policy.settings import PolicySettings

EMBEDDED_MAX_NEW_TOKENS = 512


def calibrate(
    checkpoint: o.Checkpoint = None,
    output: o.Output = None,
    problems: o.Problems = None,
    data_dir: o.DataDir = None,
    percentile: Annotated[
        float, typer.Option("--percentile", metavar="Q", help="Percentile of the entropies that becomes tau_0.")
    ] = 80.0,
    max_new_tokens: o.MaxNewTokens = None,
    compare: Annotated[
        str | None,
        typer.Option("--compare", metavar="MODEL", help="BF16 model that reads the same tokens, to show what moved."),
    ] = None,
    select_t_low: Annotated[
        str | None,
        typer.Option("--select-t-low", metavar="T,T", help="Choose T_low among these by avg@k on held-out problems."),
    ] = None,
    select_problems: Annotated[
        int, typer.Option("--select-problems", min=1, metavar="N", help="Held-out problems for --select-t-low.")
    ] = 8,
    tasks: Annotated[
        str | None,
        typer.Option("--tasks", metavar="A,B", help="Keep that T_low for these tasks only; left out: for all."),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, metavar="K", help="Samples of each held-out problem (avg@K).")
    ] = 4,
    t_low: o.TLow = None,
    t_high: o.THigh = None,
    window: o.Window = None,
    top_p: o.TopP = None,
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
    """tau_0 (and T_low on request) from calibration problems; writes reset_config.json.

    Problems are NuminaMath-1.5 from the hub, a local file or folder, or, for the embedded model offline, problems of
    our own. --t-low, --t-high, --window and --top-p are stored with tau_0; the answers themselves are drawn by policy
    fixed at T=0.6, top-p 0.95. A BF16 model needs -o: nothing is ever written into it.

    \b
    Examples:
      reset calibrate
      reset calibrate --problems 5 --data-dir data --compare Qwen/Qwen3-8B
    """
    out = Output(json=json, quiet=quiet, debug=debug)
    reporter = out.reporter
    PolicyOptions(t_low=t_low, t_high=t_high, window=window, top_p=top_p)
    runs = EngineChoice(engine, device, dtype, batch_size, batch_invariant, activations, trust_remote_code)
    from resetcli.calibration import tau0
    from resetcli.calibration.compare import compare_entropies, render_comparison
    from resetcli.calibration.record import config_directory, earlier_config, save_calibration, stored_temperatures
    from resetcli.calibration.t_low import held_out, parse_t_lows
    from resetcli.calibration.t_low import select_t_low as select_best
    from resetcli.data.problems import load_calibration_problems
    from resetcli.data.sources import DataSource
    from resetcli.evaluation.tasks import TASKS, resolve_tasks

    if not 0 < percentile < 100:
        raise UsageError(f"--percentile must be between 0 and 100, not {percentile:g}")
    candidates = parse_t_lows(select_t_low) if select_t_low is not None else None
    if tasks is not None and candidates is None:
        raise UsageError("--tasks says what --select-t-low is for; give that too, or leave --tasks out")
    # The held-out problems are mathematical, so that is what the choice is known for.
    named = resolve_tasks(tasks) if tasks is not None else [spec for spec in TASKS.values() if spec.kind == "math"]
    count, file = _problems(problems)
    data = file if file is not None else DataSource.resolve(data_dir)

    def chosen(n: int | None, own: bool, told: Reporter = reporter) -> Any:
        return load_calibration_problems(data, n, seed, own_if_offline=own, reporter=told)

    # Local problems are read before a checkpoint may have to be made.
    local = file is not None or (isinstance(data, DataSource) and data.data_dir is not None)
    picked = chosen(count, False) if local else None
    model = load(checkpoint, reporter)
    target = config_directory(model.path, nvfp4=model.nvfp4, output=output)
    picked = picked or chosen(count, model.embedded)
    old = earlier_config(target)
    chosen_low = max(candidates) if candidates is not None and tasks is None else t_low
    _, high = stored_temperatures(old, model.name, t_low=chosen_low, t_high=t_high, keep_tasks=candidates is None)
    # Before a model is loaded: too few held-out problems or a T_low above T_high must not show after hours of answers.
    trials = None
    if candidates is not None:
        trials = held_out(lambda n: chosen(n, model.embedded, Reporter()), picked.ids, select_problems)
        policy = PolicySettings(
            tau_0=1.0, t_low=max(candidates), t_high=high,
            window=window or (old.window if old else PolicySettings.window),
            top_p=top_p or (old.top_p if old else PolicySettings.top_p),
        )  # fmt: skip
        policy.validate()
    bf16 = load(compare, reporter) if compare is not None else None
    limit = max_new_tokens or (EMBEDDED_MAX_NEW_TOKENS if model.embedded else MAX_NEW_TOKENS)

    opened = runs.opener(model, reporter)()
    try:
        result = tau0.calibrate(
            opened, picked, percentile=percentile, max_new_tokens=limit, seed=seed, reporter=reporter
        )  # fmt: skip
        choice = None
        if candidates is not None and trials is not None:
            choice = select_best(
                opened, *trials, candidates, settings=replace(policy, tau_0=result.tau_0),
                score=_scorer(opened, model.path), task=tasks or "mathematics", repeats=repeats,
                max_new_tokens=limit, seed=seed, reporter=reporter,
            )  # fmt: skip
    finally:
        opened.close()
    moved = None
    if bf16 is not None:
        other = runs.opener(bf16, reporter)()
        try:
            moved = compare_entropies(result, other, reporter=reporter)
        finally:
            other.close()
    by_task = {spec.name: choice.t_low for spec in named} if choice is not None else None
    saved = save_calibration(
        result, target,
        t_low=choice.t_low if choice is not None and tasks is None else t_low,
        t_high=t_high, window=window, top_p=top_p, t_low_by_task=by_task, compare=moved,
        t_low_selection=[choice.to_json()] if choice is not None else None, reporter=reporter,
    )  # fmt: skip
    document = {**result.to_json(), "path": str(target / "reset_config.json"), "reset_config": saved.as_dict()}
    document |= {"t_low_selection": choice.to_json()} if choice is not None else {}
    document |= {"compare": moved} if moved is not None else {}

    def text() -> str:
        parts = [result.render(unicode=out.unicode)]
        if choice is not None:
            parts.append(table(("T_low", f"avg@{choice.repeats}"), [[f"{t:g}", s] for t, s in choice.scores.items()]))
            parts.append(f"T_low {choice.t_low:g} for {choice.task}")
        if moved is not None:
            parts.append(render_comparison(moved))
        parts.append(f"wrote {target / 'reset_config.json'}")
        return "\n".join(parts)

    out.result(document, text)


def _problems(value: str | None) -> tuple[int | None, Path | None]:
    """``--problems``: a number or a file."""
    if value is None:
        return None, None
    try:
        number = int(value)
    except ValueError:
        return None, Path(value).expanduser()
    if number < 1:
        raise UsageError(f"--problems must be at least 1, not {number}")
    return number, None


def _scorer(engine: Any, model: Path) -> Callable[[str, str, str], float]:
    """The evaluation's own judgement of a held-out problem's answer, thought cut off as the evaluation would."""
    from resetcli.engines.prompting import opens_thought, render_chat
    from resetcli.engines.thoughts import resolve_markers
    from resetcli.evaluation.scoring.extraction import ThoughtMarkers

    pair = resolve_markers(model)
    opened = opens_thought(render_chat(engine.tokenizer, [{"role": "user", "content": "-"}]), *pair)

    def score(text: str, target: str, finish_reason: str) -> float:
        from resetcli.evaluation.scoring.score import score_output

        markers = ThoughtMarkers(*pair)
        return score_output("math", text, target, finish_reason, markers=markers, opened_in_prompt=opened).score

    return score
