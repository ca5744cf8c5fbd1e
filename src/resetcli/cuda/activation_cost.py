"""What quantizing activations costs, alone: each form, with and without a block rotation, and fused into the module
before it, beside those modules in torch.

Inputs are small and were just written in real decoding, so they are in cache here too; a graph holds 24 calls of one
kind, which run one after the other without overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from resetcli.base.errors import ResetError
from resetcli.base.reporting import Reporter
from resetcli.cuda.activations import FORMS, UNQUANTIZED, quantize, quantize_rmsnorm, quantize_silu
from resetcli.cuda.timing import reason, time_quick

EPS = 1e-6


def activation_cost(
    ms: Sequence[int],
    ks: Sequence[int],
    *,
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Microseconds by M, K, form and kind.

    Returns:
        {"rows": [{"m", "k", "form" (None for torch), "kind": "plain", "rotated", "rmsnorm", "silu", "torch rmsnorm"
        (as transformers' modules compute it), "torch fused rmsnorm", "torch silu", "us", "why" (where it failed)}]}.
    """
    reporter = reporter or Reporter()
    side = torch.cuda.Stream()
    draw = torch.Generator(device).manual_seed(seed)
    rows: list[dict[str, Any]] = []
    with torch.inference_mode(), reporter.phase("activations", total=len(ms) * len(ks)) as advance:
        for k in sorted(set(ks)):
            for m in ms:
                x, gate, up = (torch.randn(m, k, generator=draw, device=device).to(dtype) for _ in range(3))
                weight = torch.rand(k, generator=draw, device=device).to(dtype) + 0.5
                for form, kind, call in _calls(x, gate, up, weight):
                    row: dict[str, Any] = {"m": m, "k": k, "form": form, "kind": kind, "us": None}
                    try:
                        call()
                        row["us"] = time_quick([call], side=side, replays=9) * 1e6
                    except (ResetError, RuntimeError) as exc:
                        row["why"] = reason(exc)
                    rows.append(row)
                advance(1)
            torch.cuda.empty_cache()
    return {"rows": rows}


def _calls(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, weight: torch.Tensor
) -> list[tuple[str | None, str, Callable[[], Any]]]:
    m, k = x.shape
    scale = float(x.abs().amax()) / (6 * 448)
    found: list[tuple[str | None, str, Callable[[], Any]]] = [
        (None, "torch rmsnorm", partial(_rmsnorm, x, weight)),
        (None, "torch fused rmsnorm", partial(F.rms_norm, x, (k,), weight, EPS)),
        (None, "torch silu", lambda: F.silu(gate) * up),
    ]
    for form in FORMS:
        if form in UNQUANTIZED or (form.startswith("wgmma") and m > int(form[-1])):
            continue
        found += [
            (form, "plain", partial(quantize, x, scale, form)),
            (form, "rotated", partial(quantize, x, scale, form, rotate=True)),
            (form, "rmsnorm", partial(quantize_rmsnorm, x, weight, EPS, scale, form)),
            (form, "silu", partial(quantize_silu, gate, up, scale, form)),
        ]
    return found


def _rmsnorm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


COLUMNS = ("M", "K", "form", "plain", "rotated", "rmsnorm", "silu")


def table(document: dict[str, Any]) -> list[list[str]]:
    """Microseconds under ``COLUMNS``; torch's modules are the form "torch", its fused RMSNorm "torch fused"."""
    cells: dict[tuple[int, int, str], dict[str, float]] = {}
    for row in document["rows"]:
        form, kind = row["form"], row["kind"]
        if form is None:
            form, _, kind = kind.rpartition(" ")
        if row["us"] is not None:
            cells.setdefault((row["m"], row["k"], form), {})[kind] = row["us"]
    return [
        [str(m), str(k), form, *(f"{times[kind]:.2f}" if kind in times else "" for kind in COLUMNS[3:])]
        for (m, k, form), times in cells.items()
    ]
