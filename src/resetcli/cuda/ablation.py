"""The paper's choices in the CUDA-core kernel, each switched off (arXiv 2606.13233, appendix).

C1: all tokens in one CTA, so that a weight is read once; off, each token has CTAs of its own. C2: several rows and
independent accumulators a thread; off, one of each. C3: dequantization in registers; off, through shared memory. Each
is the product alone (X quantized before, W4A4, no overlap of launches), on cold weights, all interleaved and checked
against float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from resetcli.base.errors import ResetError
from resetcli.base.reporting import Reporter
from resetcli.cuda.activations import quantize
from resetcli.cuda.dispatch import target
from resetcli.cuda.families import family
from resetcli.cuda.families.gemv import MAX_TOKENS, Gemv
from resetcli.cuda.kernel_backends import FamilyBackend
from resetcli.cuda.launch import device_index
from resetcli.cuda.problem import check, make_problem
from resetcli.cuda.shapes import Shape
from resetcli.cuda.summary import geometric_mean
from resetcli.cuda.timing import Candidate, last_level_cache, reason, time_cuda

ALL_ON = "all on"
COLD = 4.0


def ablate(
    ms: Sequence[int],
    shapes: Sequence[Shape],
    *,
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    seconds: float = 10.0,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Times with each choice switched off.

    Args:
        ms: those above 8 are left out.
        shapes: those whose K is not divisible by 32 are left out; the kernel has fewer variants for them.
        seconds: for the timed rounds in all, at least 8 a product.

    Returns:
        {"family", "rows": [{"n", "k", "m", "off" ("all on", "C1", ...), "config", "us", "over_all_on", "correct",
        "why" (where it failed)}], "means": [{"m", "off", "over_all_on", "us", "shapes"}]}.
    """
    reporter = reporter or Reporter()
    gemv = family("gemv")
    assert isinstance(gemv, Gemv)
    where = target(device_index(device))
    small = [m for m in ms if m <= MAX_TOKENS]
    shapes = [shape for shape in shapes if shape.k % 32 == 0]
    rows: list[dict[str, Any]] = []
    with torch.inference_mode(), reporter.phase("ablation", total=len(shapes) * len(small)) as advance:
        for index, shape in enumerate(shapes if small else ()):
            problem = make_problem(shape, max(small), seed + index, device)
            backend = FamilyBackend(gemv)
            first = backend.load(problem, device, dtype)
            copies = int(-(-COLD * last_level_cache(device) // first.weight_bytes))
            operands = [first, *(backend.duplicate(first) for _ in range(copies - 1))]
            for m in small:
                x = problem.x[:m].to(dtype)
                acts = quantize(x, problem.input_scale, gemv.form)
                alpha = problem.global_scale * problem.input_scale
                candidates: list[Candidate] = []
                found: dict[str, dict[str, Any]] = {}
                failed: dict[str, str] = {}
                for off, config in gemv.ablations(m, shape.n, shape.k, where.multiprocessors).items():
                    row = {"n": shape.n, "k": shape.k, "m": m, "off": off, "config": config, "correct": False}
                    out = torch.full((m, shape.n), float("nan"), dtype=dtype, device=device)
                    calls = [
                        partial(gemv.run, config, acts, operand.value.prepared, out, alpha, n=shape.n, k=shape.k)
                        for operand in operands
                    ]
                    rows.append(row)
                    try:
                        calls[0]()
                        verdict = check(out, problem.quantized[:m], problem.quantized_size[:m],
                                        problem.quantized_slack[:m], 2.0**-20, 0.5)  # fmt: skip
                    except (ResetError, RuntimeError) as exc:
                        row["why"] = reason(exc)
                        continue
                    row["correct"], found[off] = verdict.correct, row
                    candidates.append(Candidate(off, calls, first.weight_bytes, []))
                time_cuda(candidates, seconds=seconds / (len(shapes) * len(small)), least=8, most=60, failed=failed)
                times = {c.name: float(np.median(c.seconds)) * 1e6 for c in candidates if c.seconds}
                for off, row in found.items():
                    row["us"] = times.get(off)
                    if off in failed:
                        row["why"] = failed[off]
                    elif ALL_ON in times and off in times:
                        row["over_all_on"] = times[off] / times[ALL_ON]
                advance(1)
            del operands, first, problem
            torch.cuda.empty_cache()
    return {"family": gemv.name, "rows": rows, "means": means(rows)}


def means(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means over shapes by M and by what is off, of rows that are correct and were timed."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["correct"] and row.get("over_all_on") is not None:
            groups.setdefault((row["m"], row["off"]), []).append(row)
    return [
        {
            "m": m, "off": off, "over_all_on": geometric_mean(row["over_all_on"] for row in group),
            "us": geometric_mean(row["us"] for row in group), "shapes": len(group),
        }
        for (m, off), group in groups.items()
    ]  # fmt: skip


COLUMNS = ("M", "off", "us", "times all on", "shapes")


def table(document: dict[str, Any]) -> list[list[str]]:
    """The means as strings under ``COLUMNS``."""
    return [
        [str(item["m"]), item["off"], f"{item['us']:.2f}", f"{item['over_all_on']:.2f}", str(item["shapes"])]
        for item in document["means"]
    ]
