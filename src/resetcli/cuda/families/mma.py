"""The portable tensor-core family (kernels/mma.cu): weights as the 16-row operand, any number of tokens, best to 64.

A configuration is {"rows": tiles of 16 rows a warp, "tiles": of 8 tokens a CTA, "depth": chunks of K in flight,
"warps": of a CTA, "split": of those along K, "ranks": CTAs of a cluster along K}.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from resetcli.cuda.activations import BLOCK, Activations
from resetcli.cuda.build import Build, architecture_number
from resetcli.cuda.families.base import DTYPES, Family
from resetcli.cuda.families.gemv import _has_clusters

_KERNELS = {
    2: (
        (1, 1, 4, 0), (1, 1, 8, 1), (2, 1, 2, 0), (2, 1, 4, 0), (1, 2, 4, 0), (2, 2, 2, 0), (1, 4, 2, 1), (2, 4, 2, 1),
        (1, 8, 2, 0),
    ),
    1: ((1, 1, 4, 2), (1, 2, 2, 2), (1, 4, 2, 2), (1, 8, 2, 1)),
}  # fmt: skip
"""Kernels by blocks a lane (VEC): row tiles, token tiles, depth, and CTAs that a multiprocessor shall hold at least (0:
as ptxas likes); none spills on any architecture."""
_MAX_SHARED = 96 * 1024
_COSTS = {
    "w4a4": ((1, 2.5), (8, 2.55), (16, 2.9), (64, 7.9), (128, 13.8), (512, 50.0), (1024, 102.0)),
    "w4a16": ((1, 2.45), (8, 2.8), (16, 3.0), (64, 7.8), (128, 13.7), (512, 50.0), (1024, 102.0)),
}


class Mma(Family):
    """Swap-AB mma.m16n8k16: W4A4 in fp16, W4A16 in X's type."""

    name, layout, form = "mma", "rows", "fragments"
    costs = _COSTS

    def form_for(self, activations: str) -> str:
        return "fragments16" if activations == "w4a16" else "fragments"

    def supports(self, arch: str, m: int, n: int, k: int, dtype: torch.dtype, activations: str) -> tuple[bool, str]:
        if architecture_number(arch) < 80:
            return False, f"{arch} is older than sm_80"
        if dtype not in DTYPES:
            return False, f"{dtype} is neither bfloat16 nor float16"
        if m < 1 or n < 1 or k < BLOCK or k % BLOCK:
            return False, f"M={m}, N={n}, K={k}: they must be positive and K divisible by {BLOCK}"
        if n * k // 2 >= 1 << 32 or m > 8 * 65535:
            return False, f"M={m}, N={n}, K={k}: too large for 32-bit offsets"
        return True, ""

    def configs(self, m: int, n: int, k: int, multiprocessors: int, activations: str) -> list[dict[str, Any]]:
        vec = 2 if k % 32 == 0 else 1
        tokens = -(-m // 8)
        wanted = next((t for t in (1, 2, 4) if t >= tokens), 8)
        chunks = -(-k // (64 * vec))
        found = []
        for rows, tiles, depth, _ in _KERNELS[vec]:
            if tiles != wanted:
                continue
            for warps in (4, 8):
                for split in (1, 2, 4, 8):
                    for ranks in (1, 2, 4):
                        config = {"rows": rows, "tiles": tiles, "depth": depth, "warps": warps, "split": split,
                                  "ranks": ranks}  # fmt: skip
                        if split <= warps and split * ranks <= chunks and _shared(config) <= _MAX_SHARED:
                            found.append(config)
        return sorted(found, key=lambda config: _cost(config, n, chunks, multiprocessors))

    def builds(self, arch: str) -> list[Build]:
        if architecture_number(arch) < 80:
            return []
        return [_build(dtype, vec) for dtype in DTYPES for vec in _KERNELS]

    def prepare(self, weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return weight, scale

    def run(
        self,
        config: dict[str, Any],
        acts: Activations,
        prepared: tuple[torch.Tensor, ...],
        out: torch.Tensor,
        alpha: float,
        *,
        n: int,
        k: int,
        pdl: int = 0,
    ) -> None:
        from resetcli.cuda.launch import launch, load

        x = acts.tensors[0]
        shared = _shared(config)
        module = load(_build(x.dtype, 2 if k % 32 == 0 else 1), out.device)
        function = module.function(f"mma_r{config['rows']}_t{config['tiles']}_d{config['depth']}", shared)
        ranks = config["ranks"] if _has_clusters(out) else 1
        tiles = -(-n // (16 * config["rows"] * (config["warps"] // config["split"])))
        grid = (tiles * ranks, -(-acts.m // (8 * config["tiles"])))
        args = (
            *prepared, x, out, alpha, acts.m, n, k, config["split"].bit_length() - 1, ranks.bit_length() - 1,
            int(out.dtype == torch.float16),
        )  # fmt: skip
        launch(function, grid, 32 * config["warps"], args, shared=shared, pdl=bool(pdl), cluster=ranks * (ranks > 1))


def _shared(config: dict[str, Any]) -> int:
    """Bytes of partial sums of one CTA."""
    pitch = 8 if config["tiles"] == 1 else 8 * config["tiles"] + 8
    return config["warps"] * 16 * config["rows"] * pitch * 4


def _cost(config: dict[str, Any], n: int, chunks: int, multiprocessors: int) -> tuple[float, ...]:
    """Fitted to what an H200 showed of eight shapes: some 12 warps a multiprocessor, K cut into two to four parts in a
    CTA, rows that share what is read of X, whole waves of some 19 warps, pieces of 16 rows in flight: some 8 a warp and
    64 a multiprocessor."""
    rows, depth, warps, split = (config[name] for name in ("rows", "depth", "warps", "split"))
    parts, groups = split * config["ranks"], warps // split
    load = -(-n // (16 * rows)) * parts / multiprocessors
    waves = -(-n // (16 * rows * groups)) * config["ranks"] * warps / multiprocessors / 19.2
    flight = math.log2(depth * rows)
    cost = 0.5 * max(0.0, 12 / load - 1) + 0.35 * max(0.0, depth * parts / chunks - 1)
    cost += 0.17 * abs(math.log2(parts) - 1.5) + 0.1 * math.log2(groups) + 0.06 * math.log2(config["ranks"])
    cost += 0.125 * config["tiles"] / rows + (0.06 if warps == 8 else 0.0)
    cost += 0.15 * (math.ceil(waves) / waves - 1) if waves > 1 else 0.0
    cost += 0.025 * abs(flight - 2.9) + 0.043 * abs(flight + math.log2(min(load, 64)) - 6)
    return cost, -depth * rows, -warps


def _build(dtype: torch.dtype, vec: int) -> Build:
    listed = " ".join(f"KERNEL({','.join(map(str, kernel))})" for kernel in _KERNELS[vec])
    return Build("mma.cu", (("X_BF16", int(dtype == torch.bfloat16)), ("VEC", vec), ("KERNELS", listed)))


FAMILIES: list[Family] = [Mma()]
