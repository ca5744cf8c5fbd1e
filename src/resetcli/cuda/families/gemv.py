"""The CUDA-core family (kernels/gemv.cu): 1 to 8 tokens, weights as the checkpoint has them.

Two members share the kernel: "gemv" multiplies int8 codes by dp4a and serves W4A16 as well, "gemv-half2" is the paper's
arithmetic. A configuration is {"rows", "depth", "chains": which kernel; "warps": of a CTA, "split": of those along K,
"ranks": CTAs of a cluster along K}, with "vec": 1 where lanes take one block at a time, and for the ablation
"fuse": False (C1 off) and "stage": True (C3 off); C2 off is the kernel of one row, depth and chain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from resetcli.cuda.activations import BLOCK, Activations
from resetcli.cuda.build import Build, architecture_number
from resetcli.cuda.families.base import DTYPES, LATE, Family

MAX_TOKENS = 8
_INT8, _HALF2, _BF16, _FP16 = 1, 2, 3, 4  # the ARITH macro
_C2_OFF = (1, 1, 1)
_COSTS = {
    "int8": {"w4a4": ((1, 1.45), (2, 1.55), (4, 2.15), (8, 3.2)), "w4a16": ((1, 2.0), (2, 2.6), (4, 3.8), (8, 6.7))},
    "f16": {"w4a4": ((1, 2.0), (2, 2.25), (4, 3.05), (8, 5.6))},
}

Kernel = tuple[int, int, int, int, int]
"""Rows a warp, chunks in flight, accumulator chains, CTAs of 8 warps that a multiprocessor shall hold (0: as it comes),
and what counts on Hopper instead, where not 0: registers a thread."""
_FILE_REGISTERS = 65536 // 4 // 32
"""A lane's, of each of a multiprocessor's four register files."""


def kernels(arithmetic: int, tokens: int, vec: int) -> tuple[Kernel, ...]:
    """The kernels of one compilation, one of them of 2 rows: none spills on any architecture."""
    if arithmetic == _INT8 and vec == 2:
        if tokens == 1:
            return (
                (2, 1, 1, 4, 48), (3, 1, 1, 3, 56), (4, 1, 1, 3, 64), (5, 1, 1, 2, 72), (6, 1, 1, 2, 80),
                (4, 2, 1, 3, 80), (2, 2, 1, 4, 64), (2, 4, 1, 3, 80), (1, 4, 2, 3, 0), (1, 1, 1, 4, 0),
            )  # fmt: skip
        if tokens == 2:
            return (
                (2, 1, 1, 3, 56), (3, 1, 1, 2, 72), (4, 1, 1, 2, 88), (5, 1, 1, 2, 104), (4, 2, 1, 2, 0),
                (2, 4, 1, 2, 0), (2, 2, 1, 3, 72), (1, 4, 2, 0, 0), (1, 1, 1, 0, 0),
            )  # fmt: skip
        if tokens <= 4:
            fits = 2 if tokens == 3 else 1
            return ((4, 1, 1, fits, 0), (2, 2, 1, 2, 0), (2, 4, 1, 2, 0), (4, 2, 1, 1, 0), (1, 1, 1, 2, 0))
        return ((4, 1, 1, 1, 0), (2, 1, 1, 2 if tokens < 8 else 1, 0), (4, 2, 1, 1, 0), (1, 1, 1, 2, 0))
    if arithmetic == _HALF2:
        if tokens <= 2:
            return ((2, 4, 1, 2, 0), (2, 2, 1, 2, 0), (1, 1, 1, 0, 0))
        return ((2, 2, 1, 2 if tokens == 3 else 1, 0), (1, 1, 1, 2 if tokens < 8 else 1, 0))
    return ((2, 2, 1, 2 if tokens <= 4 else 1, 0),)


class Gemv(Family):
    """``form`` decides the arithmetic of W4A4: "int8" or "f16"."""

    layout = "rows"
    late = True

    def __init__(self, name: str, form: str):
        self.name, self.form = name, form
        self.costs = _COSTS[form]

    def supports(self, arch: str, m: int, n: int, k: int, dtype: torch.dtype, activations: str) -> tuple[bool, str]:
        if architecture_number(arch) < 80:
            return False, f"{arch} is older than sm_80"
        if dtype not in DTYPES:
            return False, f"{dtype} is neither bfloat16 nor float16"
        if self.form != "int8" and activations == "w4a16":
            return False, "half2 arithmetic multiplies codes; with w4a16 X has none"
        if self.form != "int8" and k % 32:
            return False, f"K={k} is not a multiple of 32"
        if k % BLOCK or k < BLOCK:
            return False, f"K={k} is not a positive multiple of {BLOCK}"
        if n < 2:
            return False, f"N={n} is less than the 2 rows that a warp takes"
        if not 1 <= m <= MAX_TOKENS:
            return False, f"M={m} is not from 1 to {MAX_TOKENS}"
        return True, ""

    def configs(self, m: int, n: int, k: int, multiprocessors: int, activations: str) -> list[dict[str, Any]]:
        vec = 2 if k % 32 == 0 else 1
        arithmetic = self._arithmetic(activations, torch.bfloat16)
        found = list(self._configs(m, n, k, multiprocessors, arithmetic, vec))
        if activations == "w4a16" and vec == 2:  # narrower loads of weights make those of X denser
            found += [{**c, "vec": 1} for c in self._configs(m, n, k, multiprocessors, arithmetic, 1)]
        known = {kernel[:3]: kernel for kernel in kernels(arithmetic, m, vec)}
        waves = arithmetic == _INT8 and vec == 2 and m <= 2

        def cost(config: dict[str, Any]) -> tuple[float, ...]:
            kernel = known[config["rows"], config["depth"], config["chains"]]
            return self._cost(config, m, n, k, multiprocessors, kernel, waves, activations == "w4a16")

        return sorted(found, key=cost)

    def _configs(self, m: int, n: int, k: int, mps: int, arithmetic: int, vec: int) -> Iterator[dict[str, Any]]:
        chunks = -(-k // (512 * vec))
        for rows, depth, chains, *_ in kernels(arithmetic, m, vec):
            if rows > n or (rows, depth, chains) == _C2_OFF:
                continue
            for warps in (2, 4, 8):
                for split in (1, 2, 4, 8):
                    if split > min(warps, chunks):
                        continue
                    config = {
                        "rows": rows,
                        "depth": depth,
                        "chains": chains,
                        "warps": warps,
                        "split": split,
                        "ranks": 1,
                    }
                    yield config
                    tiles = -(-n // (rows * (warps // split)))
                    if split == warps and tiles < mps:  # too few rows to fill the machine
                        yield from ({**config, "ranks": r} for r in (2, 4) if split * r <= chunks)

    @staticmethod
    def _cost(
        config: dict[str, Any], m: int, n: int, k: int, mps: int, kernel: Kernel, waves: bool, in_16_bit: bool
    ) -> tuple[float, ...]:
        """As an H200 showed of products that overlap. Where ``waves`` count (int8, one or two tokens): warps that fill
        the machine in one wave, or whole waves, some 25 a multiprocessor at least; then whole rows of K, one chunk in
        flight, four warps a CTA. With X in 16 bit: some 12 warps a multiprocessor, whole rows of K, and where warps are
        many one block a lane. Else: some 16, each warp's first loads covering much of its part of K, and rows that
        share what is read of X."""
        rows, depth, _, ctas, registers = kernel
        parts, warps = config["split"] * config["ranks"], config["warps"]
        vec = config.get("vec", 2 if k % 32 == 0 else 1)
        load = -(-n // rows) * parts / mps
        if waves:
            room = 4 * (_FILE_REGISTERS // registers) if registers else 8 * (ctas or 2)
            held = max(1, room // warps) * warps
            over = load > held
            unfilled = math.ceil(load / held) * held / load - 1 if over else 0.0
            cost = max(0.0, 1 - load / held) + 0.5 * unfilled + 0.1 * over + 0.25 * max(0.0, 25 / load - 1)
            cost += 0.06 * (parts - 1) + 0.2 * (depth - 1) + 0.025 * abs(warps - 4)
        elif in_16_bit:
            cost = max(0.0, 12 / load - 1) + 0.05 * math.log2(parts) + 0.015 * abs(math.log2(warps) - 2.5)
            cost += 0.12 * max(0.0, math.log2(load / (40 if m == 1 else 10))) if vec == 2 else 0.04
        else:
            passes = max(1.0, k / (512 * vec * parts * depth))
            cost = max(0.0, 16 / load - 1) + 0.02 * passes + 0.05 * parts + 0.1 * m / rows
        return (cost, -depth * rows, abs(warps - 4))

    def ablations(self, m: int, n: int, k: int, multiprocessors: int) -> dict[str, dict[str, Any]]:
        """W4A4 configurations by what is switched off: "C1", "C2", "C3"; all else as in the default ("all on")."""
        base = self.configs(m, n, k, multiprocessors, "w4a4")[0]
        staged = {**base, "rows": 2, "depth": 2, "chains": 1, "stage": True}
        single = kernels(self._arithmetic("w4a4", torch.bfloat16), 1, 2 if k % 32 == 0 else 1)
        one = next((c for c in single if c[:2] == (base["rows"], base["depth"])), single[0])
        return {
            "all on": base,
            "C1": {**base, "rows": one[0], "depth": one[1], "chains": one[2], "fuse": False},
            "C2": {**base, "rows": 1, "depth": 1, "chains": 1},
            "C3": staged,
        }

    def builds(self, arch: str) -> list[Build]:
        if architecture_number(arch) < 80:
            return []
        kinds = (_INT8, _BF16, _FP16) if self.form == "int8" else (_HALF2,)
        vecs = (2, 1) if self.form == "int8" else (2,)
        found = [self._build(kind, m, vec) for kind in kinds for m in range(1, MAX_TOKENS + 1) for vec in vecs]
        # Where the ablation is measured; elsewhere its builds are made when asked for.
        return found + [self._build(kinds[0], m, 2, stage=True) for m in (1, 4, 8) if arch == "sm_90a"]

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

        arithmetic = self._arithmetic("w4a16" if acts.form == "x16" else "w4a4", acts.dtype)
        vec = config.get("vec", 2) if k % 32 == 0 else 1
        tokens = acts.m if config.get("fuse", True) else 1
        build = self._build(arithmetic, tokens, vec, stage=config.get("stage", False))
        name = f"gemv_r{config['rows']}_d{config['depth']}_c{config['chains']}"
        ranks = config["ranks"] if _has_clusters(out) else 1
        groups = config["warps"] // config["split"]
        tiles = -(-n // (config["rows"] * groups))
        args = (*prepared, acts.tensors[0], acts.tensors[-1], out, alpha, acts.m, n, k,
                config["split"].bit_length() - 1, ranks.bit_length() - 1, int(out.dtype == torch.float16),
                int(pdl == LATE))  # fmt: skip
        grid = (tiles * ranks, acts.m // tokens)
        function = load(build, out.device).function(name)
        launch(function, grid, 32 * config["warps"], args, pdl=bool(pdl), cluster=ranks * (ranks > 1))

    def _arithmetic(self, activations: str, dtype: torch.dtype) -> int:
        if activations == "w4a16":
            return _FP16 if dtype == torch.float16 else _BF16
        return _INT8 if self.form == "int8" else _HALF2

    @staticmethod
    @lru_cache(maxsize=256)  # made at every launch
    def _build(arithmetic: int, tokens: int, vec: int, *, stage: bool = False) -> Build:
        chosen = kernels(arithmetic, tokens, vec)
        if stage:
            chosen = ((2, 2, 1, 1, 0),)
        listed = " ".join(
            f"BY_REGISTERS({','.join(map(str, kernel))})"
            if kernel[-1]
            else f"BY_CTAS({','.join(map(str, kernel[:-1]))})"
            for kernel in chosen
        )
        defines = (("ARITH", arithmetic), ("TOKENS", tokens), ("VEC", vec), ("STAGE", int(stage)), ("KERNELS", listed))
        return Build("gemv.cu", defines)


def _has_clusters(tensor: torch.Tensor) -> bool:
    return torch.cuda.get_device_capability(tensor.device)[0] >= 9


FAMILIES: list[Family] = [Gemv("gemv", "int8"), Gemv("gemv-half2", "f16")]
