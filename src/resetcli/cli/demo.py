"""``reset demo``: the whole chain on the embedded model, each step by the functions that the other commands call."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from resetcli.base.errors import ResetError
from resetcli.base.files import MARKER
from resetcli.cli import options as o
from resetcli.cli.loading import EngineChoice, PolicyOptions, load
from resetcli.cli.output import Output, table
from resetcli.cli.scores import percent

CALIBRATION_TOKENS = 256
"""Limit of a calibration answer here; `reset calibrate` itself gives the embedded model 512."""

ANSWER_TOKENS = 128
PROMPT = "A shop sells apples at 3 dollars each. How much do 7 apples cost? Explain step by step."


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where everything goes; made anew each time.")
    ] = Path("reset-demo"),
    problems: Annotated[int, typer.Option("--problems", min=2, metavar="N", help="Calibration problems.")] = 5,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Evaluation problems.")] = 24,
    repeats: o.Repeats = 4,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, metavar="N", help="Limit of an evaluated answer.")
    ] = 48,
    device: o.Device = None,
    seed: o.Seed = 0,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Quantize, calibrate, generate and evaluate on the embedded model.

    Needs no network. Everything shown is computed now: the embedded model has 135 million parameters, so its answers
    are often wrong, and the scores say how often.

    \b
    Examples:
      reset demo
      reset demo --limit 8 --repeats 1
    """
    out = Output(json=json, quiet=quiet, debug=debug)
    runs = EngineChoice(device=device, batch_size=8)
    started = time.monotonic()
    folder = _fresh(output)
    checkpoint, quantized = _quantize(out, folder, device, seed)
    document: dict[str, Any] = {"folder": str(folder), "quantize": quantized}
    document["calibrate"] = _calibrate(out, checkpoint, runs, problems, seed)
    document["generate"] = _generate(out, checkpoint, runs, seed)
    document["eval"] = _evaluate(out, checkpoint, runs, folder, limit, repeats, max_new_tokens, seed)
    document["seconds"] = time.monotonic() - started
    out.result(document, lambda: _summary(document))


def _title(out: Output, text: str) -> None:
    if not out.json and not out.reporter.quiet:
        out.write(f"\n== {text}\n")


def _fresh(output: Path) -> Path:
    """An empty folder that is marked as ours; an older demo there is removed, anything else is refused."""
    folder = output.expanduser().absolute()
    if folder.exists():
        ours = folder.is_dir() and (folder / MARKER).exists()
        if not ours and not (folder.is_dir() and not any(folder.iterdir())):
            raise ResetError(f"{folder} is not an older demo's folder; choose another with -o")
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True)
        (folder / MARKER).touch()
    except OSError as exc:
        raise ResetError(f"cannot create {folder}: {exc.strerror or exc}; choose another folder with -o") from exc
    return folder


def _quantize(out: Output, folder: Path, device: str | None, seed: int) -> tuple[Path, dict[str, Any]]:
    from resetcli.cli.quantize import render
    from resetcli.models.embedded import EMBEDDED_NAME, embedded_model_dir
    from resetcli.models.resolve import ModelSource
    from resetcli.quantization.last import remembers_another
    from resetcli.quantization.run import quantize

    _title(out, "reset quantize: BF16 to NVFP4")
    source = ModelSource(embedded_model_dir(out.reporter), EMBEDDED_NAME, "the embedded model")
    path = folder / f"{EMBEDDED_NAME}-nvfp4"
    # A checkpoint made in earnest stays the one that commands take when none is named.
    remember = not remembers_another(path)
    report = quantize(source, path, device=device, seed=seed, remember=remember, reporter=out.reporter)
    if not out.json:
        out.write(render(report) + "\n")
    return path, report


def _calibrate(out: Output, path: Path, runs: EngineChoice, problems: int, seed: int) -> dict[str, Any]:
    from resetcli.calibration.record import config_directory, save_calibration
    from resetcli.calibration.tau0 import calibrate
    from resetcli.data.problems import own_problems

    _title(out, "reset calibrate: the entropy threshold tau_0, on problems of our own")
    model = load(str(path), out.reporter)
    target = config_directory(model.path, nvfp4=True, output=None)
    engine = runs.opener(model, out.reporter)()
    try:
        result = calibrate(
            engine, own_problems(problems, seed), max_new_tokens=CALIBRATION_TOKENS, seed=seed, reporter=out.reporter
        )  # fmt: skip
    finally:
        engine.close()
    save_calibration(result, target, reporter=out.reporter)
    if not out.json:
        out.write(result.render(unicode=out.unicode) + "\n")
    return result.to_json()


def _generate(out: Output, path: Path, runs: EngineChoice, seed: int) -> dict[str, Any]:
    from resetcli.cli.generate import Session

    _title(out, "reset generate: one answer under policy reset")
    model = load(str(path), out.reporter)
    settings = model.settings(PolicyOptions(), out.reporter)
    engine = runs.opener(model, out.reporter)()
    try:
        session = Session(out, engine, model, settings, seed=seed, max_new_tokens=ANSWER_TOKENS)
        if not out.json:
            out.write(f"{PROMPT}\n\n")
        document = session.answer([{"role": "user", "content": PROMPT}], 0, None)
    finally:
        engine.close()
    return document


def _evaluate(
    out: Output, path: Path, runs: EngineChoice, folder: Path, limit: int, repeats: int, tokens: int, seed: int
) -> dict[str, Any]:
    from resetcli.data.sources import DataSource
    from resetcli.evaluation.evaluate import run_eval

    _title(out, "reset eval: simple problems of our own, policy fixed against policy reset")
    model = load(str(path), out.reporter)
    found = {}
    for policy in ("fixed", "reset"):
        out.reporter.info(f"policy {policy}")
        settings = model.settings(PolicyOptions(policy), out.reporter)
        found[policy] = run_eval(
            runs.opener(model, out.reporter), ["own"], DataSource(), settings, model=model.name,
            fingerprint=model.fingerprint, engine_options=runs.record(), limit=limit, repeats=repeats, seed=seed,
            max_new_tokens=tokens, output=folder / f"eval-{policy}", reporter=out.reporter,
        )  # fmt: skip
        if error := found[policy].get("error"):
            raise ResetError(f"policy {policy}: {error}")
    return found


def _summary(document: dict[str, Any]) -> str:
    rows = []
    for policy, run in document["eval"].items():
        task = run["results"]["own"]
        low, high = task["ci95"]
        rows.append([
            policy, task["n"], task["repeats"], percent(task["avg@k"]), f"{percent(low)} to {percent(high)}",
            percent(task["truncated"]), f"{task['tokens_mean']:.0f}", f"{run['timing']['tokens_per_s']:.1f}",
        ])  # fmt: skip
    generated = document["generate"]
    return "\n".join(
        [
            table(("policy", "n", "k", "avg@k", "95 % interval", "truncated", "tokens", "tokens/s"), rows),
            "",
            f"tau_0     {document['calibrate']['tau_0']:.4f} nats",
            f"decoding  {generated['tokens_per_s']:.1f} tokens/s for one request alone; the table's are of 8 at a time",
            "scores    " + ", ".join(f"{row[0]} {row[3]} ({row[4]})" for row in rows),
            f"          {rows[0][1]} simple problems: where intervals overlap, no ranking follows",
            f"time      {document['seconds']:.0f} s, everything in {document['folder']}",
            "",
            'Next: reset generate -p "What is 17 * 23?"   reset inspect   reset eval --tasks own',
        ]
    )
