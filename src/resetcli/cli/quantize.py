"""``reset quantize``: parses, calls ``quantization.run.quantize``, prints its report."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from resetcli.cli import options as o
from resetcli.cli.output import Output, pairs, size


def quantize(
    model: o.Model = None,
    output: o.Output = None,
    recipe: Annotated[str, typer.Option("--recipe", metavar="NAME", help="How codes and scales are chosen.")] = "rtn",
    calib_data: Annotated[
        str | None,
        typer.Option(
            "--calib-data", metavar="FILE|HUB_ID", help="Text for the activation ranges; left out: a bundled text."
        ),
    ] = None,
    calib_samples: Annotated[
        int | None, typer.Option("--calib-samples", min=1, metavar="N", help="Rows of text (8 on a CPU, 32 on a GPU).")
    ] = None,
    calib_length: Annotated[
        int | None, typer.Option("--calib-length", min=16, metavar="N", help="Tokens a row (256 on a CPU, else 512).")
    ] = None,
    exclude: Annotated[
        str, typer.Option("--exclude", metavar="A,B", help="Wildcards of layers that stay in BF16.", show_default=False)
    ] = "",
    device: o.Device = None,
    overwrite: o.Overwrite = False,
    trust_remote_code: o.TrustRemoteCode = False,
    seed: o.Seed = 0,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """BF16 model to NVFP4 checkpoint, through ModelOpt.

    The checkpoint has ModelOpt's Hugging Face layout; it is read back and compared with the model, and the figures
    go to quantize_report.json in it. It appears whole or not at all.

    \b
    Examples:
      reset quantize
      reset quantize Qwen/Qwen3-8B -o Qwen3-8B-nvfp4 --calib-data texts.jsonl
    """
    out = Output(json=json, quiet=quiet, debug=debug)
    from resetcli.base.files import check_output
    from resetcli.models.resolve import resolve_model
    from resetcli.quantization.recipes import get_recipe
    from resetcli.quantization.run import quantize as work

    get_recipe(recipe)
    if output is not None:
        output = output.expanduser()
        check_output(output, overwrite=overwrite)
    source = resolve_model(model, reporter=out.reporter)
    out.reporter.info(f"model {source.path} ({source.why})")
    report = work(
        source,
        output,
        recipe=recipe,
        calib_data=calib_data,
        calib_samples=calib_samples,
        calib_length=calib_length,
        exclude=[part.strip() for part in exclude.split(",") if part.strip()],
        device=device,
        overwrite=overwrite,
        seed=seed,
        trust_remote_code=trust_remote_code,
        reporter=out.reporter,
    )
    out.result(report, lambda: render(report))


def render(report: dict[str, Any]) -> str:
    """The report in a few lines."""
    check, error, sizes = report["check"], report["relative_error"], report["size_bytes"]
    lines = [
        ("checkpoint", report["path"]),
        ("recipe", report["recipe"]),
        ("quantized layers", len(report["layers"])),
        (
            "relative error",
            f"mean {error['mean']:.4f}, largest {error['max']:.4f} in {error['worst']}"
            if error["mean"] is not None
            else None,
        ),
        ("size", f"{size(sizes['bf16'])} in BF16, {size(sizes['nvfp4'])} in NVFP4"),
        ("KL to BF16", f"{check['kl_nats']:.4f} nats over {check['positions']} positions of {check['text']}"),
        ("same top token", f"{100 * check['top1_agreement']:.1f} %"),
        ("perplexity", f"{check['perplexity_bf16']:.2f} in BF16, {check['perplexity_nvfp4']:.2f} in NVFP4"),
        ("greedy, BF16", repr(check["greedy_bf16"])),
        ("greedy, NVFP4", repr(check["greedy_nvfp4"])),
        ("time", f"{report['seconds']['total']:.1f} s"),
    ]
    return pairs([line for line in lines if line[1] is not None])
