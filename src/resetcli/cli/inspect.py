"""``reset inspect``: parses, calls ``nvfp4.inspect.inspect_checkpoint``, prints the anatomy."""

from __future__ import annotations

from typing import Any

from resetcli.cli import options as o
from resetcli.cli.output import Output, pairs, size, table


def inspect(
    checkpoint: o.Checkpoint = None,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    debug: o.Debug = False,
) -> None:
    """Validate a checkpoint and show its anatomy.

    Every fault that the files show is listed in one error.

    \b
    Examples:
      reset inspect
      reset inspect Qwen3-8B-nvfp4 --json
    """
    out = Output(json=json, quiet=quiet, debug=debug)
    from resetcli.nvfp4.inspect import inspect_checkpoint
    from resetcli.quantization.last import resolve_checkpoint

    source = resolve_checkpoint(checkpoint, reporter=out.reporter)
    out.reporter.info(f"checkpoint {source.path} ({source.why})")
    report = inspect_checkpoint(source.path, trust_remote_code=trust_remote_code)
    out.result(report, lambda: render(report))


def render(report: dict[str, Any]) -> str:
    """The report as tables."""
    config = report["reset_config"]
    rows = [
        ("path", report["path"]),
        ("format", report["format"]),
        ("producer", report["producer"]),
        ("architecture", report["architecture"]),
        ("layers", report["layers"]),
        ("context", report["context"]),
        ("vocabulary", report["vocab_size"]),
        ("tied embeddings", report["tied_embeddings"]),
        ("chat template", report["chat_template"]),
        ("thinking switch", report["thinking"]),
        ("files", len(report["files"])),
        ("size", size(report["bytes"])),
        ("parameters", f"{report['parameters']:,}"),
        ("bits a weight", report["bits_per_weight"]),
        ("tensors", ", ".join(f"{n} {dtype}" for dtype, n in report["tensors_by_dtype"].items())),
        ("fingerprint", report["fingerprint"]),
        ("quantize report", report["quantize_report"]),
        ("reset_config", f"tau_0 {config['tau_0']:.4f}" if isinstance(config, dict) and "tau_0" in config else None),
    ]
    parts = []
    if report["nvfp4"]:
        scales = report["scales"]
        block = scales["block"]
        rows += [
            ("quantized layers", report["quantized_layers"]),
            ("weights only", report["weight_only"]),
            ("left in 16 bit", report["ignored"]),
            (
                "block scales",
                f"{block['min']:g} to {block['max']:g}, mean {block['mean']:.4g}, {block['count']:,} blocks",
            ),
            ("weight_scale_2", " to ".join(f"{v:.4g}" for v in scales["weight_scale_2"])),
            ("input_scale", " to ".join(f"{v:.4g}" for v in scales["input_scale"]) if scales["input_scale"] else None),
            ("bytes", ", ".join(f"{part} {size(n)}" for part, n in report["bytes_by_part"].items())),
        ]
        parts.append(
            table(("layer", "N", "K", "count"), [[s["kind"], s["n"], s["k"], s["count"]] for s in report["shapes"]])
        )
    return "\n".join([pairs(rows), *parts, *(f"note: {note}" for note in report["notes"])])
