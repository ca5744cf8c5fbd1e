"""Everything `reset bench-kernels` measures on a GPU, in one process and a few minutes; needs torch, NumPy and CuPy.

Compiles, tunes within a time, benches the paper's twelve shapes, then layer chains, ablation and quantization of
activations. Writes `bench.json` after each shape and part, and the tuned table as the package ships it
(`nvidia-h200.json` on an H200), into --output. Prints the means at the end.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from resetcli.base.errors import ResetError
from resetcli.base.files import write_json
from resetcli.base.reporting import Reporter
from resetcli.cuda import ablation, activation_cost, layer_chain, summary
from resetcli.cuda.kernel_table import file_name
from resetcli.cuda.layer_chain import PRESET_NAMES
from resetcli.cuda.shapes import parse_ms, parse_shapes
from resetcli.cuda.suite import Parts, run_suite


class Printer(Reporter):
    """Lines at once, so that a log shows how far a run came."""

    def info(self, message: str) -> None:
        print(message, flush=True)

    warn = info

    def phase(self, name: str, total: int | None = None):
        self.info(f"{name} ...")
        return super().phase(name, total)


def lines(title: str, columns: Any, rows: list[list[str]]) -> str:
    """A table as text."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    body = "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in (columns, *rows))
    return f"\n{title}\n{body}"


def main() -> int:
    """Exit status: 0 if all parts ran and every result was right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for bench.json and the table")
    parser.add_argument("--M", default="1,2,4,8")
    parser.add_argument("--shapes", default="paper")
    parser.add_argument("--tune-seconds", type=float, default=55.0)
    parser.add_argument("--seconds", type=float, default=20.0, help="for the bench's timed rounds")
    parser.add_argument("--commit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-tune", action="store_true", help="use the tables there are")
    parser.add_argument("--backends", help="names, separated by commas (default: all)")
    parser.add_argument("--tune-activations", default="w4a4", help="w4a4, w4a16 or both, separated by a comma")
    parser.add_argument(
        "--products-only", action="store_true", help="neither layers nor ablation nor quantization alone"
    )
    args = parser.parse_args()
    begun = time.perf_counter()
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    args.output.mkdir(parents=True, exist_ok=True)
    parts = Parts(
        tune=not args.no_tune, tune_seconds=args.tune_seconds, tune_output=args.output / file_name(name),
        activations=args.tune_activations.split(","), ablate=not args.products_only,
        layers=() if args.products_only else PRESET_NAMES, activation_quant=not args.products_only,
    )  # fmt: skip
    try:
        document = measure(args, parts)
    except ResetError as exc:
        print(f"error: {exc}")
        return 2
    report(document)
    print(f"ok: {document['ok']}, {time.perf_counter() - begun:.0f} s in all")
    return 0 if document["ok"] else 1


def measure(args: argparse.Namespace, parts: Parts) -> dict[str, Any]:
    """The document of all parts."""
    return run_suite(
        parse_ms(args.M), parse_shapes(args.shapes), device="cuda", seed=args.seed, seconds=args.seconds, parts=parts,
        names=args.backends.split(",") if args.backends else None, given_commit=args.commit,
        save=partial(write_json, args.output / "bench.json"), reporter=Printer(),
    )  # fmt: skip


def report(document: dict[str, Any]) -> None:
    """Print the means, and what went wrong."""
    for key, module, title in (
        ("activation_quant", activation_cost, "quantization of activations, microseconds"),
        ("ablation", ablation, "one choice switched off, means over shapes"),
        ("layers", layer_chain, "a layer's projections, microseconds"),
    ):
        if key in document:
            print(lines(title, module.COLUMNS, module.table(document[key])))  # type: ignore[attr-defined]
    print(lines("geometric means over shapes", summary.COLUMNS, summary.table(document["summary"])))
    means = document["summary"]
    print(f"\nM=8 over M=1: {means.get('m8_over_m1')}\nalone: {means.get('m8_over_m1_alone')}")
    print(f"best family's share of the read: {means.get('best_of_read')}")
    print(f"wrong: {document['wrong']}\nfailed: {document['failed']} {document['parts_failed']}")
    print(f"left out: {dict.fromkeys((item['backend'], item['why']) for item in document['skipped']).keys()}")


if __name__ == "__main__":
    raise SystemExit(main())
