"""The Hopper family (kernels/hopper.cu): 1 to 8 tokens through fp8 wgmma, weights in a layout of its own, "tiles".

Two members share the kernel: "wgmma4" for at most 4 tokens and "wgmma8" for at most 8, which reads fewer bytes of
activations a token and spends more instructions. A configuration is the kernel, {"groups": warpgroups a CTA, "stages"
of a warp's ring, "early": those requested ahead of the activations, "blocks": CTAs a multiprocessor}, and the cut of
the work, {"cluster": CTAs, "units": of 16 rows a cluster takes, "sliced": warpgroups that share a unit along K}.

Layout "tiles", uint8 [ceil(N/64), ceil(K/128), 4 warps, 1152]: 1024 bytes of codes and 128 of scales for 16 rows and
128 columns. Lane l of the warp owns rows l/4 and l/4 + 8 and, of each block of 16 columns, four from 4*(l%4) on; its
32-bit words are [k/64][lane][k/32 % 2][row half]. A word holds eight codes: byte j has column j of the first block of
32 as bits s..mag at 7, 4-2, and of the second block the magnitude at 6, 5, 0; bit 1 is the sign of the second block's
column j - 1 (mod 4). So one AND makes E4M3 bytes of the first four, a rotation and two ANDs those of the others.
Scales are E4M3 bytes [row % 8][k/32][row half][block % 2]. What lies beyond N or K is zero.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from resetcli.cuda.activations import BLOCK, Activations
from resetcli.cuda.build import Build
from resetcli.cuda.families.base import DTYPES, Family

ROWS, UNIT, COLUMNS = 64, 16, 128
WARP_CHUNK = 1152
SHARED = 227 * 1024
"""Bytes of shared memory that one CTA may have; an SM has 1024 more a CTA beside."""
_MULTIPROCESSORS = 132
_AT_ONCE = {
    1: {1: 132, 2: 66, 3: 36, 4: 30, 5: 22, 6: 16, 7: 14, 8: 14},
    2: {1: 264, 2: 132, 3: 72, 4: 60, 5: 44, 6: 36, 7: 32, 8: 28},
}
"""By CTAs that a multiprocessor holds and CTAs of a cluster: the most clusters that an H200's GPCs were seen to hold at
once. One more than there is room for has to wait, for up to twice the time."""
Kernel = tuple[int, int, int, int]
"""groups, stages, early, blocks."""
_KERNELS: dict[int, tuple[Kernel, ...]] = {
    4: (
        (4, 5, 2, 1), (3, 5, 2, 1), (3, 7, 1, 1), (4, 4, 2, 1), (4, 3, 2, 1), (4, 7, 2, 1), (3, 7, 2, 1), (2, 5, 1, 2),
    ),
    8: (
        (4, 5, 2, 1), (3, 6, 2, 1), (3, 5, 2, 1), (4, 4, 1, 1), (3, 4, 2, 1), (3, 7, 2, 1), (4, 4, 2, 1), (4, 3, 2, 1),
        (2, 4, 2, 2),
    ),
}  # fmt: skip
"""By most tokens, as they did on an H200, best first."""


class Hopper(Family):
    """``most``: 4 or 8 tokens."""

    layout = "tiles"
    late = True

    def __init__(self, most: int):
        self.most = most
        self.name = self.form = f"wgmma{most}"
        self.costs = {"w4a4": ((1, 1.58), (2, 1.6), (4, 1.65)) if most == 4 else ((1, 1.7), (8, 1.75))}

    def supports(self, arch: str, m: int, n: int, k: int, dtype: torch.dtype, activations: str) -> tuple[bool, str]:
        if arch != "sm_90a":
            return False, f"wgmma is of sm_90a, not of {arch}"
        if activations != "w4a4":
            return False, "fp8 holds quantized activations only; w4a16 has 16-bit ones"
        if dtype not in DTYPES:
            return False, f"{dtype} is neither bfloat16 nor float16"
        if k % BLOCK or k < BLOCK:
            return False, f"K={k} is not a positive multiple of {BLOCK}"
        if n < 1:
            return False, f"N={n} is not positive"
        if not 1 <= m <= self.most:
            return False, f"M={m} is not from 1 to {self.most}"
        if not self.configs(m, n, k, _MULTIPROCESSORS, activations):
            return False, f"activations of K={k} leave no room in shared memory"
        return True, ""

    def configs(self, m: int, n: int, k: int, multiprocessors: int, activations: str) -> list[dict[str, Any]]:
        return [dict(config) for config in _configs(self.most, m, n, k, multiprocessors)]

    def builds(self, arch: str) -> list[Build]:
        return [_build(self.most, *kernel) for kernel in _KERNELS[self.most]] if arch == "sm_90a" else []

    def prepare(self, weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (pack_tiles(weight, scale),)

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

        kernel = (config["groups"], config["stages"], config["early"], config["blocks"])
        ranks, units, sliced = config["cluster"], config["units"], config["sliced"]
        all_units, chunks = -(-n // UNIT), -(-k // COLUMNS)
        clusters = -(-all_units // units)
        share, extra = divmod(chunks, ranks * sliced)
        shared = shared_bytes(self.most, kernel, ranks, units, sliced, acts.m, chunks)
        function = load(_build(self.most, *kernel), out.device).function("hopper_w4a4", shared)
        args = (
            prepared[0], acts.tensors[0], out, alpha, n, chunks, acts.m, units, all_units, ranks.bit_length() - 1,
            sliced, config["groups"] // sliced, share, extra, _room(ranks, sliced, chunks),
            int(out.dtype == torch.bfloat16), pdl,
        )  # fmt: skip
        launch(
            function,
            clusters * ranks,
            128 * config["groups"],
            args,
            shared=shared,
            pdl=bool(pdl),
            cluster=ranks if ranks > 1 else 0,
        )


def clusters_at_once(ctas: int, blocks: int, multiprocessors: int) -> int:
    """Clusters of 1 to 8 ``ctas`` that a Hopper GPU runs at once; a multiprocessor holds ``blocks`` (1 or 2) CTAs."""
    return max(1, _AT_ONCE[blocks][ctas] * multiprocessors // _MULTIPROCESSORS)


@lru_cache(maxsize=64)
def _build(most: int, *kernel: int) -> Build:
    names = ("GROUPS", "STAGES", "EARLY", "BLOCKS")
    return Build("hopper.cu", (("SPREAD", int(most == 8)), *zip(names, kernel, strict=True)))


def shared_bytes(most: int, kernel: Kernel, ranks: int, units: int, sliced: int, m: int, chunks: int) -> int:
    """Dynamic shared memory of a CTA: rings, barriers, activations of its slice of K, and received sums."""
    groups, stages = kernel[:2]
    room = _room(ranks, sliced, chunks)
    factors = 64 if most == 8 else 32  # of a row and 128 columns; each a row of 16 bytes, and a byte as it came
    x = (192 * m + 17 * factors) * room + 128 if most == 8 else (256 * m + 17 * factors) * room
    received = -(-units // (4 * ranks)) * ranks * sliced * (2048 if most == 8 else 1024)
    return groups * 4 * stages * WARP_CHUNK + 128 + x + received


def _room(ranks: int, sliced: int, chunks: int) -> int:
    """Chunks of the longest slice of K that a CTA has."""
    share, extra = divmod(chunks, ranks * sliced)
    return sliced * share + min(extra, sliced)


@lru_cache(maxsize=4096)
def _configs(most: int, m: int, n: int, k: int, multiprocessors: int) -> tuple[tuple[tuple[str, int], ...], ...]:
    """All cuts of the work that fill the machine evenly enough, the most even first."""
    all_units, chunks = -(-n // UNIT), -(-k // COLUMNS)
    found = []
    for order, kernel in enumerate(_KERNELS[most]):
        groups, _, _, blocks = kernel
        limit = min(SHARED, (SHARED + 1024) // blocks - 1024)
        for ranks in (1, 2, 4, 8):
            places = clusters_at_once(ranks, blocks, multiprocessors)
            for waves in (1 << i for i in range(all_units.bit_length() + 1)):
                # more than one only if the sums of all of a cluster's rows do not fit
                least = max(1, -(-all_units // (places * waves)))
                cuts = [
                    (units, sliced)
                    for units in sorted({least, least + 1, -(-least // 4) * 4})
                    for sliced in range(1, groups + 1)
                    if groups % sliced == 0 and ranks * sliced <= chunks
                    if shared_bytes(most, kernel, ranks, units, sliced, m, chunks) <= limit
                ]
                if cuts:
                    break
            for units, sliced in cuts:
                cost = _unevenness(kernel, ranks, units, sliced, all_units, chunks, multiprocessors)
                rank_cost = (0.0, 0.01, 0.08, 0.25)[ranks.bit_length() - 1]
                slice_cost = 0.03 * (sliced - 1) if most == 8 else 0.0  # sums that meet, of more tokens
                found.append((cost + rank_cost + slice_cost + 0.02 * order, kernel, ranks, units, sliced))
    if not found:
        return ()
    found.sort()
    best = found[0][0]
    keys = ("groups", "stages", "early", "blocks", "cluster", "units", "sliced")
    return tuple(
        tuple(zip(keys, (*kernel, *cut), strict=True)) for cost, kernel, *cut in found[:96] if cost <= best + 0.6
    )


def _unevenness(
    kernel: Kernel, ranks: int, units: int, sliced: int, all_units: int, chunks: int, multiprocessors: int
) -> float:
    """Work of the busiest CTA, warpgroup for warpgroup, in units of an even spread over the machine."""
    groups, _, _, blocks = kernel
    lanes, quads = groups // sliced, -(-units // 4)
    clusters = -(-all_units // units)
    waves = -(-clusters // clusters_at_once(ranks, blocks, multiprocessors))
    even = all_units * chunks / (multiprocessors * blocks)
    bytes_read = units * -(-chunks // ranks) * waves / even
    turns = 4 * -(-quads // lanes) * -(-chunks // (ranks * sliced)) * groups * waves / even
    return 0.75 * bytes_read + 0.25 * turns  # in a last quad of few units most warps read nothing


def pack_tiles(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Layout "tiles" of a weight uint8 [N, K/2] with scales float8_e4m3fn [N, K/16]; on their device, by tiles."""
    n, k = weight.shape[0], weight.shape[1] * 2
    tiles, chunks = -(-n // ROWS), -(-k // COLUMNS)
    out = torch.empty(tiles, chunks, 4, WARP_CHUNK, dtype=torch.uint8, device=weight.device)
    step = max(1, (1 << 24) // (chunks * COLUMNS * ROWS))  # 16 million codes at a time bound the scratch
    for start in range(0, tiles, step):
        stop = min(tiles, start + step)
        part = slice(start * ROWS, min(n, stop * ROWS))
        out[start:stop] = _pack(weight[part], scale[part].view(torch.uint8), stop - start, chunks)
    return out


def _pack(weight: torch.Tensor, scale: torch.Tensor, tiles: int, chunks: int) -> torch.Tensor:
    n, k = weight.shape[0], weight.shape[1] * 2
    codes = weight.new_zeros(tiles * ROWS, chunks * COLUMNS)
    codes[:n, 0:k:2] = weight & 15
    codes[:n, 1:k:2] = weight >> 4
    # [tile, warp, half, row, chunk, k/32, block, t, j] to [tile, chunk, warp, k/64, row, t, k/32 % 2, half, block, j]
    codes = codes.view(tiles, 4, 2, 8, chunks, 2, 2, 2, 4, 4).permute(0, 4, 1, 5, 3, 8, 6, 2, 7, 9)
    first, second = codes[..., 0, :], codes[..., 1, :]
    magnitude, sign = second & 7, second >> 3
    byte = ((first & 8) << 4) | ((first & 7) << 2) | ((magnitude & 6) << 4) | (magnitude & 1)
    byte |= torch.roll(sign, 1, -1) << 1
    scales = weight.new_zeros(tiles * ROWS, chunks * 8)
    scales[:n, : k // BLOCK] = scale & 0x7F  # -0 is 0
    # [tile, warp, half, row, chunk, k/32, block] to [tile, chunk, warp, row, k/32, half, block]
    scales = scales.view(tiles, 4, 2, 8, chunks, 4, 2).permute(0, 4, 1, 3, 5, 2, 6)
    return torch.cat([byte.reshape(tiles, chunks, 4, 1024), scales.reshape(tiles, chunks, 4, 128)], -1)


FAMILIES: list[Family] = [Hopper(4), Hopper(8)]
