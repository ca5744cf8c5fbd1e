"""``reset bench-kernels``: parses, calls ``cuda.bench.run_bench``, prints its table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from resetcli.base.errors import unknown_name
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
    seed: o.Seed = 0,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Small-M NVFP4 products: speed against BF16 and against this machine's own memory, checked as they run.

    Weights are cold (copies in rotation); "of read" is the share of the speed at which this machine reads the same
    bytes. A backend that computes wrongly makes the command fail.

    \b
    Examples:
      reset bench-kernels --M 1,4,8
      reset bench-kernels --M 1 --shapes 4096x4096 --seconds 2
    """
    out = Output(json=json, quiet=quiet, debug=debug)
    from resetcli.cuda.shapes import parse_ms, parse_shapes

    ms, wanted = parse_ms(m), parse_shapes(shapes)
    if output is not None:
        check_writable_file(output, "-o")
    import torch

    from resetcli.base.files import write_json
    from resetcli.cuda.bench import COLUMNS, run_bench
    from resetcli.cuda.bench import table as bench_rows
    from resetcli.engines.factory import DTYPES

    if dtype is not None and dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    document = run_bench(
        ms,
        wanted,
        device=device,
        dtype=getattr(torch, dtype) if dtype is not None else None,
        names=[part.strip() for part in backends.split(",") if part.strip()] if backends is not None else None,
        seed=seed,
        seconds=seconds,
        reporter=out.reporter,
    )
    if output is not None:
        write_json(output.expanduser(), document)
    out.result(document, lambda: f"{machine(document)}\n{table(COLUMNS, bench_rows(document))}{skipped(document)}")
    if not document["ok"]:
        out.reporter.warn(f"wrong results: {', '.join(document['wrong'])}")
        raise typer.Exit(1)


def machine(document: dict[str, Any]) -> str:
    """What the figures were measured on."""
    rates = ", ".join(f"{name} {rate / 1e9:.1f} GB/s" for name, rate in document["read"].items())
    facts = ", ".join(f"{name} {value}" for name, value in document["machine"].items() if name != "device")
    return f"{document['machine']['device']} ({facts}); reads {rates}; {document['method']['dtype']}"


def skipped(document: dict[str, Any]) -> str:
    """What was left out and why, once a reason."""
    reasons = dict.fromkeys((row["backend"], row["why"]) for row in document["skipped"])
    return "".join(f"\nleft out: {backend} ({why})" for backend, why in reasons)
