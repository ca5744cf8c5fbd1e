"""The Hopper family for many tokens (kernels/wide.cu): 16-bit wgmma on weights of layout "tiles", W4A4 and W4A16.

Serves batches of more than 8, prefill, and W4A16 of any M, from the copy of the weights that the family for few tokens
reads. A configuration is {"groups": warpgroups of 64 rows a CTA, "tokens": of its tile, and either "slices": CTAs of a
cluster that cut K, "side": CTAs of it side by side along N, which share what they read of X; or "ctas": of the whole
grid, between whose clusters of "side" CTAs the chunks of all tiles are cut evenly}.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from resetcli.cuda.activations import BLOCK, FLAGS, Activations
from resetcli.cuda.build import Build
from resetcli.cuda.families.base import DTYPES, LONG_SUMS, SHORT_SUMS, Family
from resetcli.cuda.families.hopper import COLUMNS, ROWS, SHARED, WARP_CHUNK, clusters_at_once, pack_tiles

_TILE_CHUNK = 4 * WARP_CHUNK
_TOKENS = (8, 16, 32, 64, 128, 256)
_MOST_STAGES = 8
_LONGEST = 16
"""Chunks of K that one sum takes for up to ``_FEW`` tokens, so that errors stay below 2^-20 sum |x w|. With more tokens
sums may be as long as those of the library's own products."""
_FEW = 128
_COSTS = {
    "w4a4": ((1, 2.15), (8, 2.2), (16, 2.35), (64, 3.25), (128, 4.15), (512, 11.8), (1024, 22.7)),
    "w4a16": ((1, 2.3), (8, 2.35), (16, 2.5), (64, 3.5), (128, 4.5), (512, 12.3), (1024, 23.2)),
}
_CHUNK = {
    (2, 8): (0.40, 0.41, 0.42), (2, 16): (0.45, 0.46, 0.46), (2, 32): (0.47, 0.48, 0.48), (2, 64): (0.60, 0.62, 0.63),
    (2, 128): (0.64, 0.66, 0.68), (2, 256): (1.27, 1.30, 1.33), (4, 8): (0.65, 0.66, 0.66), (4, 16): (0.73, 0.74, 0.75),
    (4, 32): (0.78, 0.79, 0.80), (4, 64): (0.98, 1.00, 1.03), (4, 128): (1.27, 1.30, 1.36),
}  # fmt: skip
"""About the microseconds that a CTA of an H200 takes for a chunk, by warpgroups and tokens, for 1, 2 and 4 CTAs side by
side: fitted to single trials. For ranking, not for telling times."""
_STREAMING = {
    (4, 8): (0.65, 0.66), (4, 16): (0.71, 0.72), (4, 32): (0.75, 0.76), (4, 64): (0.96, 0.98), (2, 128): (0.71, 0.72),
    (2, 256): (1.32, 1.33),
}  # fmt: skip
"""The same of the kernels whose grid cuts all tiles evenly, for 1 and 2 CTAs side by side."""
_TOGETHER = 1.75
"""What two CTAs of a multiprocessor take, in times of one."""
_FIXED, _APART, _STREAM_FIXED, _PART, _MEMORY = 4.0, 3.0, 8.0, 2.0, 3.9e6
"""Microseconds before and after, for adding up a cluster's sums, with an even cut and for each of its parts of a tile
beyond the first; bytes a microsecond of memory."""


class Wide(Family):
    """``form`` of W4A4 is float16 whatever X's type: codes times block scales are exact in it."""

    name, layout, form = "wide", "tiles", "panels"
    costs = _COSTS

    def form_for(self, activations: str) -> str:
        return "panels16" if activations == "w4a16" else self.form

    def supports(self, arch: str, m: int, n: int, k: int, dtype: torch.dtype, activations: str) -> tuple[bool, str]:
        if arch != "sm_90a":
            return False, f"wgmma is of sm_90a, not of {arch}"
        if dtype not in DTYPES:
            return False, f"{dtype} is neither bfloat16 nor float16"
        if m < 1 or n < 1 or k < BLOCK or k % BLOCK:
            return False, f"M={m}, N={n}, K={k}: they must be positive and K divisible by {BLOCK}"
        if m * k >= 1 << 35:
            return False, f"M={m}, K={k}: too large for 32-bit indices"
        return True, ""

    def error(self, m: int) -> float:
        return SHORT_SUMS if m <= _FEW else LONG_SUMS

    def configs(self, m: int, n: int, k: int, multiprocessors: int, activations: str) -> list[dict[str, Any]]:
        return [dict(config) for config in _configs(m, n, k, multiprocessors)]

    def steady(self, config: dict[str, Any], m: int, n: int, k: int, multiprocessors: int) -> bool:
        """CTAs of which two fit on a multiprocessor and that are too few for that spread out or do not: on one shape
        they took 13.6 us in one run and 19.8 in the next."""
        groups, tokens, slices, side = (config[name] for name in ("groups", "tokens", "slices", "side"))
        clusters = _clusters(groups, tokens, side, n, m)
        return not _spreads(groups, tokens, slices * side, clusters, multiprocessors)

    def builds(self, arch: str) -> list[Build]:
        if arch != "sm_90a":
            return []
        return [
            _build(*kernel, bf16, stream)
            for kernel in _kernels()
            for bf16 in (False, True)
            for stream in (False, True)
            if not stream or kernel in _STREAMING
        ]

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

        groups, tokens, x, flags = config["groups"], config["tokens"], *acts.tensors
        slices, side, ctas = config["slices"], config["side"], config["ctas"]
        chunks, parts = -(-k // COLUMNS), None
        row_tiles, token_tiles = -(-n // (ROWS * groups * side)), -(-acts.m // tokens)
        clusters = row_tiles * token_tiles
        if ctas:
            share, extra = divmod(clusters * chunks, ctas // side)
            parts = torch.empty(ctas * ROWS * groups * tokens, dtype=torch.float32, device=out.device)
        else:
            share, extra = divmod(chunks, slices)
        shared = shared_bytes(groups, tokens)
        module = load(_build(groups, tokens, x.dtype == torch.bfloat16, ctas > 0), out.device)
        args = (
            prepared[0], x, out, parts, flags, alpha, n, acts.m, chunks, row_tiles, token_tiles, side.bit_length() - 1,
            share, extra, int(out.dtype == torch.bfloat16), int(pdl > 0),
        )  # fmt: skip
        launch(
            module.function("wide", shared),
            ctas or clusters * slices * side,
            128 * groups + 128,
            args,
            shared=shared,
            pdl=bool(pdl),
            cluster=slices * side if slices * side > 1 else 0,
        )


def blocks(groups: int, tokens: int) -> int:
    """CTAs that a multiprocessor holds."""
    return 2 if groups == 2 and tokens <= 64 else 1


def stages(groups: int, tokens: int) -> int:
    """Chunks that the ring of a CTA holds."""
    room = (SHARED + 1024) // blocks(groups, tokens) - 1024 - 16 * (_MOST_STAGES + 1)
    return min(_MOST_STAGES, room // _stage(groups, tokens))


def shared_bytes(groups: int, tokens: int) -> int:
    """Dynamic shared memory of a CTA: the ring, two barriers a stage, and one more."""
    return stages(groups, tokens) * (_stage(groups, tokens) + 16) + 16


def _stage(groups: int, tokens: int) -> int:
    return 256 * tokens + groups * _TILE_CHUNK


def _kernels() -> list[tuple[int, int]]:
    """Warpgroups and tokens: four of 256 tokens have no registers for their sums."""
    return [(groups, tokens) for groups in (2, 4) for tokens in _TOKENS if groups * tokens <= 512]


def _cuts_sums(groups: int, tokens: int) -> bool:
    """Whether there are registers to add up sums of ``_LONGEST`` chunks; else a CTA's slice of K must be that short."""
    return groups * tokens <= 256


@lru_cache(maxsize=64)
def _build(groups: int, tokens: int, bf16: bool, stream: bool) -> Build:
    defines = (
        ("GROUPS", groups), ("TOKENS", tokens), ("STAGES", stages(groups, tokens)),
        ("BLOCKS", blocks(groups, tokens)), ("X_BF16", int(bf16)),
        ("STREAM", int(stream)), ("TAKES", _LONGEST * _cuts_sums(groups, tokens)),
    )  # fmt: skip
    return Build("wide.cu", defines)


@lru_cache(maxsize=4096)
def _configs(m: int, n: int, k: int, multiprocessors: int) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Ways to cut the work, the one that the cost model likes best first."""
    chunks = -(-k // COLUMNS)
    least = next((tokens for tokens in _TOKENS if tokens >= min(m, 64)), 64)
    most = next((tokens for tokens in _TOKENS if tokens >= m), _TOKENS[-1])
    least_us = n * k * 9 / 16 / _MEMORY + _FIXED
    found = []
    for groups, tokens in _kernels():
        if not least <= tokens <= most:
            continue
        exact = _cuts_sums(groups, tokens)
        fewest = 1 if exact or m > _FEW else -(-chunks // _LONGEST)
        for side in (1, 2, 4):
            clusters = _clusters(groups, tokens, side, n, m)
            for slices in range(fewest, min(8 // side, chunks) + 1):
                took, alone = _microseconds(groups, tokens, slices, side, clusters, chunks, multiprocessors)
                found.append((max(took, least_us), max(alone, least_us), groups, tokens, slices, side, 0))
        for side, chunk in enumerate(_STREAMING.get((groups, tokens), ()), 1):
            cutters = max(1, multiprocessors // side)  # clusters between which all the work is cut
            work = _clusters(groups, tokens, side, n, m) * chunks
            share = -(-work // cutters)
            able = 2 * cutters <= work and cutters * side <= FLAGS
            if able and (exact or m > _FEW or min(chunks, share) <= _LONGEST):
                parts = max(0.0, chunks / share - 1.5) * groups * tokens / 512
                took = share * chunk + _STREAM_FIXED + _PART * parts
                took = max(took, least_us)
                found.append((took, took, groups, tokens, 1, side, cutters * side))
    found.sort()
    keys = ("groups", "tokens", "slices", "side", "ctas")
    likely = [cut for _, alone, *cut in found if alone <= 1.5 * found[0][0]]
    return tuple(tuple(zip(keys, cut, strict=True)) for cut in likely[:24])


def _clusters(groups: int, tokens: int, side: int, n: int, m: int) -> int:
    """Clusters that have rows and tokens of their own."""
    return -(-n // (ROWS * groups * side)) * -(-m // tokens)


def _microseconds(
    groups: int, tokens: int, slices: int, side: int, clusters: int, chunks: int, multiprocessors: int
) -> tuple[float, float]:
    """What the whole product takes, roughly, behind a kernel that has not ended, and alone: few CTAs then spread out
    over multiprocessors that could hold two."""
    held = blocks(groups, tokens)
    rounds = -(-clusters // clusters_at_once(slices * side, held, multiprocessors))
    share = -(-chunks // slices) * _CHUNK[groups, tokens][side.bit_length() - 1]
    size = groups * tokens / 512
    rest = _FIXED + size + (0.0 if slices == 1 else _APART * (1 + size) / 2)
    behind = rounds * (share * (_TOGETHER if held == 2 else 1.0) + rest)
    return behind, share + rest if _spreads(groups, tokens, slices * side, clusters, multiprocessors) else behind


def _spreads(groups: int, tokens: int, ctas: int, clusters: int, multiprocessors: int) -> bool:
    """Whether ``clusters`` of ``ctas`` find a multiprocessor for each CTA of a kernel of which one holds two."""
    return blocks(groups, tokens) == 2 and clusters <= clusters_at_once(ctas, 1, multiprocessors)


FAMILIES: list[Family] = [Wide()]
