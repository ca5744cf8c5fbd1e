"""Dequantize and multiply in 16 bit (kernels/dequant.cu, then cuBLAS): for prefill, and where nothing else fits.

The weight is unpacked without its global factor, codes * block scales being exact in bf16 and fp16, and so is X with
W4A4; all global factors go into the product's own alpha, which the library applies to the float32 sum before its only
rounding. So fp16 does not overflow on the way. Costs 2 bytes a weight of scratch, at most ``SCRATCH`` at a time.

"dense" reads the checkpoint's rows, "dense-tiles" the layout of the Hopper family, so that a model which decodes on
those kernels keeps one copy of its weights for prefill too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from resetcli.cuda.activations import BLOCK, Activations
from resetcli.cuda.build import Build, architecture_number
from resetcli.cuda.families.base import DTYPES, LONG_SUMS, Family
from resetcli.cuda.families.hopper import ROWS, pack_tiles

SCRATCH = 512 * 1024 * 1024
"""Bytes of dequantized weights at a time."""
_BUILD = Build("dequant.cu")
_NAME = {torch.bfloat16: "dequantize_bf16", torch.float16: "dequantize_fp16"}
_THREADS = 256
_FROM_ROWS = ((64, 15.9), (128, 16.3), (512, 22.6), (1024, 33.9))
_FROM_TILES = ((64, 11.0), (128, 11.4), (512, 17.4), (1024, 28.4))


class Dense(Family):
    """Unpacked weights times 16-bit X through the library; ``layout`` "rows" or "tiles"."""

    form = "q16"

    def __init__(self, layout: str):
        self.layout = layout
        self.costs = {"w4a4": _FROM_TILES if layout == "tiles" else _FROM_ROWS}
        self.name = "dense" if layout == "rows" else f"dense-{layout}"

    def supports(self, arch: str, m: int, n: int, k: int, dtype: torch.dtype, activations: str) -> tuple[bool, str]:
        if architecture_number(arch) < 80:
            return False, f"{arch} is older than sm_80"
        if dtype not in DTYPES:
            return False, f"{dtype} is neither bfloat16 nor float16"
        if m < 1 or n < 1 or k < BLOCK or k % BLOCK:
            return False, f"M={m}, N={n}, K={k}: they must be positive and K divisible by {BLOCK}"
        if self.layout == "tiles" and arch != "sm_90a":
            return False, f"layout tiles is made for sm_90a, not for {arch}"
        return True, ""

    def error(self, m: int) -> float:
        return LONG_SUMS

    def configs(self, m: int, n: int, k: int, multiprocessors: int, activations: str) -> list[dict[str, Any]]:
        return [{}]

    def builds(self, arch: str) -> list[Build]:
        return [_BUILD] if self.supports(arch, 1, 16, 16, torch.bfloat16, "w4a4")[0] else []

    def prepare(self, weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (pack_tiles(weight, scale),) if self.layout == "tiles" else (weight, scale)

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
        x = acts.tensors[0]
        tall = max(1, SCRATCH // (2 * k * ROWS)) * ROWS
        with _full_precision():
            for start in range(0, n, tall):
                stop = min(n, start + tall)
                if self.layout == "tiles":
                    part = prepared[0][start // ROWS : -(-stop // ROWS)]
                    wide = dequantize_tiles(part, stop - start, k, x.dtype, pdl=bool(pdl) and start == 0)
                else:
                    weight, scale = prepared
                    wide = dequantize(weight[start:stop], scale[start:stop], x.dtype, pdl=bool(pdl) and start == 0)
                # beta 0: `out` is not read, whatever it holds
                out[:, start:stop].addmm_(x, wide.t(), beta=0, alpha=alpha)


def dequantize(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, *, pdl: bool = False) -> torch.Tensor:
    """codes * block scales, without the global factor: [N, K] in bf16 or fp16, exact, of weight uint8 [N, K/2] and
    scale float8_e4m3fn [N, K/16], both contiguous on one GPU."""
    from resetcli.cuda.launch import launch, load

    n, k = weight.shape[0], weight.shape[1] * 2
    out = torch.empty(n, k, dtype=dtype, device=weight.device)
    threads = n * (k // (32 if k % 32 == 0 else 16))
    function = load(_BUILD, weight.device).function(_NAME[dtype])
    launch(function, -(-threads // _THREADS), _THREADS, (weight, scale, out, n, k), pdl=pdl)
    return out


def dequantize_tiles(tiles: torch.Tensor, n: int, k: int, dtype: torch.dtype, *, pdl: bool = False) -> torch.Tensor:
    """As ``dequantize``: [n, k] of the first n rows of a weight in layout "tiles" (``hopper.pack_tiles``)."""
    from resetcli.cuda.launch import launch, load

    out = torch.empty(n, k, dtype=dtype, device=tiles.device)
    threads = tiles.shape[0] * tiles.shape[1] * 4 * 64
    function = load(_BUILD, tiles.device).function(_NAME[dtype].replace("dequantize", "dequantize_tiles"))
    args = (tiles, out, n, k, tiles.shape[1])
    launch(function, -(-threads // _THREADS), _THREADS, args, pdl=pdl)
    return out


@contextmanager
def _full_precision() -> Iterator[None]:
    """cuBLAS may otherwise add its partial sums in 16 bit."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = matmul.allow_fp16_reduced_precision_reduction = False
    try:
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction = before


FAMILIES: list[Family] = [Dense("rows"), Dense("tiles")]
