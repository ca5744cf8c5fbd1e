"""``reset bench-kernels``: parses, calls ``cuda.suite.run_suite``, prints its tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from resetcli.base.errors import UsageError, unknown_name
from resetcli.cli import options as o
from resetcli.cli.loading import check_writable_file
from resetcli.cli.output import Output, table


def bench_kernels(
    m: Annotated[str, typer.Option("--M", metavar="M,M", help="Batch sizes, separated by commas.")] = "1,4,8",
    shapes: Annotated[
        str | None,
        typer.Option(
            "--shapes",
            metavar="LIST",
            help="NxK, checkpoint directories, or paper (default), qwen3-8b, qwen3-14b, qwen3-32b, r1-qwen-7b, "
            "r1-qwen-14b; separated by commas.",
        ),
    ] = None,
    backends: Annotated[
        str | None,
        typer.Option("--backends", metavar="A,B", help="Only these (and the BF16 baseline); left out: all there are."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Also write the JSON document there.")
    ] = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0, metavar="S", help="Time for the timed rounds.")] = 30.0,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="First measure which kernel is fastest for each shape and M; keep it."),
    ] = False,
    tune_seconds: Annotated[
        float | None,
        typer.Option("--tune-seconds", min=1, metavar="S", help="About how long tuning may take; left out: all of it."),
    ] = None,
    tune_output: Annotated[
        Path | None, typer.Option("--tune-output", metavar="FILE", help="Also write the tuned table there.")
    ] = None,
    tune_families: Annotated[
        str | None,
        typer.Option(
            "--tune-families",
            metavar="A,B",
            help="Kernel families of which all configurations are tried (default gemv,mma,wgmma4,wgmma8,wide).",
        ),
    ] = None,
    tune_activations: Annotated[
        str | None,
        typer.Option(
            "--tune-activations", metavar="A,B", help="Kinds of products to tune: w4a4 (default), w4a16, or both."
        ),
    ] = None,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Also time the paper's choices C1, C2, C3, each switched off.")
    ] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Also time a whole layer's projections of Qwen3-8B, 14B and 32B.")
    ] = False,
    activation_quant: Annotated[
        bool, typer.Option("--activation-quant", help="Also time the quantization of activations alone.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the figure (.png, .svg, .pdf; matplotlib).")
    ] = None,
    commit: Annotated[
        str | None, typer.Option("--commit", metavar="ID", help="Commit for the document (default: this checkout's).")
    ] = None,
    seed: o.Seed = 0,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Small-M NVFP4 products: speed against BF16 and against this machine's own memory, checked as they run.

    Weights are cold (copies in rotation); "of read" is the share of the speed at which this machine reads the same
    bytes. On a GPU the 4-bit products of torch, bitsandbytes, vLLM (Marlin; on Blackwell CUTLASS) and FlashInfer stand
    beside ours where they are installed. A backend that computes wrongly makes the command fail. The options --tune,
    --ablate, --layers and --activation-quant need a GPU.

    \b
    Examples:
      reset bench-kernels --M 1,4,8
      reset bench-kernels --M 1 --shapes 4096x4096 --seconds 2
      reset bench-kernels --M 1,8 --shapes qwen3-8b --tune --tune-seconds 60 --ablate --layers -o bench.json
    """
    out = Output(json=json, quiet=quiet, debug=debug)
    from resetcli.cuda.shapes import parse_ms, parse_shapes

    ms, wanted = parse_ms(m), parse_shapes(shapes)
    if not tune and any(value is not None for value in (tune_seconds, tune_output, tune_families, tune_activations)):
        raise UsageError("--tune-seconds, --tune-output, --tune-families and --tune-activations go with --tune")
    kinds = _items(tune_activations) if tune_activations is not None else ["w4a4"]
    for kind in kinds or [""]:
        if kind not in ("w4a4", "w4a16"):
            raise unknown_name("activation mode", kind, ("w4a4", "w4a16"))
    for path, option, content in (
        (output, "-o", "a bench document"),
        (tune_output, "--tune-output", "a table of kernels"),
        (plot, "--plot", None),
    ):
        if path is not None:
            check_writable_file(path, option, content)
    import torch

    from resetcli.base.files import write_json
    from resetcli.cuda.families import family
    from resetcli.cuda.layer_chain import PRESET_NAMES
    from resetcli.cuda.plot import check_plot
    from resetcli.cuda.plot import plot as draw
    from resetcli.cuda.suite import Parts, run_suite
    from resetcli.engines.factory import DTYPES

    if dtype is not None and dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    if plot is not None:
        check_plot(plot)
    parts = Parts(
        tune=tune,
        tune_seconds=tune_seconds,
        tune_output=tune_output.expanduser() if tune_output is not None else None,
        families=[family(name).name for name in _items(tune_families)] if tune_families is not None else None,
        activations=kinds,
        ablate=ablate,
        layers=PRESET_NAMES if layers else (),
        activation_quant=activation_quant,
    )
    document = run_suite(
        ms,
        wanted,
        device=device,
        dtype=getattr(torch, dtype) if dtype is not None else None,
        names=_items(backends) if backends is not None else None,
        seed=seed,
        seconds=seconds,
        parts=parts,
        given_commit=commit,
        save=partial(write_json, output.expanduser()) if output is not None else None,
        reporter=out.reporter,
    )
    out.result(document, lambda: text(document))
    if plot is not None:
        draw(document, plot.expanduser())
    if not document["ok"]:
        for name, why in document["parts_failed"].items():
            out.reporter.warn(f"{name} failed: {why}")
        if document["wrong"]:
            out.reporter.warn(f"wrong results: {', '.join(document['wrong'])}")
        raise typer.Exit(1)


def _items(names: str) -> list[str]:
    return [part.strip() for part in names.split(",") if part.strip()]


def text(document: dict[str, Any]) -> str:
    """All tables of a document: rows, then on a GPU the means, and the other parts that ran."""
    from resetcli.cuda import ablation, activation_cost, bench, layer_chain, summary

    found = [f"{machine(document)}\n{table(bench.COLUMNS, bench.table(document))}{skipped(document)}"]
    if any("alone_us" in row for row in document["rows"]):
        found.append(f"geometric means over shapes\n{table(summary.COLUMNS, summary.table(document['summary']))}")
        found.append(growth(document["summary"]))
    for name, module, title in (
        ("layers", layer_chain, "a layer's projections, microseconds"),
        ("ablation", ablation, "one choice switched off, means over shapes"),
        ("activation_quant", activation_cost, "quantization of activations, microseconds"),
    ):
        if name in document:
            found.append(f"{title}\n{table(module.COLUMNS, module.table(document[name]))}")  # type: ignore[attr-defined]
    return "\n\n".join(found)


def growth(means: dict[str, Any]) -> str:
    """How M = 8 compares with M = 1, and the best share of the read ceiling, a line each where there is one."""
    lines = []
    for key, title in (("m8_over_m1", "M=8 over M=1"), ("m8_over_m1_alone", "M=8 over M=1, the product alone")):
        if means[key]:
            lines.append(f"{title}: " + ", ".join(f"{name} {mean:.2f}" for name, mean in means[key].items()))
    best = {m: mean for m, mean in means["best_of_read"].items() if mean is not None}
    if best:
        lines.append("best family's share of the read: " + ", ".join(f"M={m} {mean:.1%}" for m, mean in best.items()))
    return "\n".join(lines)


def machine(document: dict[str, Any]) -> str:
    """What the figures were measured on."""
    rates = ", ".join(f"{name} {rate / 1e9:.1f} GB/s" for name, rate in document["read"].items())
    smi = document["machine"].get("nvidia_smi") or {}
    facts = ", ".join(
        f"{name} {value}"
        for name, value in {**document["machine"], **smi}.items()
        if name not in ("device", "nvidia_smi", "name") and value is not None
    )
    return f"{document['machine']['device']} ({facts}); reads {rates}; {document['method']['dtype']}"


def skipped(document: dict[str, Any]) -> str:
    """What was left out and why, once a reason."""
    reasons = dict.fromkeys((row["backend"], row["why"]) for row in document["skipped"])
    return "".join(f"\nleft out: {backend} ({why})" for backend, why in reasons)
