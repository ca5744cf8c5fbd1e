"""Layout "tiles" and the configurations of the Hopper family, without a GPU.

The layout is read back here word by word as it is described, with the kernel's own bit moves, and judged by ml_dtypes:
what the lanes of a warp take apart must be the weight that was put in.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resetcli.cuda.families import family
from resetcli.cuda.families.hopper import COLUMNS, ROWS, UNIT, _room, clusters_at_once, pack_tiles, shared_bytes
from resetcli.cuda.shapes import PAPER

BF16 = torch.bfloat16


def random_weight(n: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=draw)
    scale = torch.randint(0, 127, (n, k // 16), dtype=torch.uint8, generator=draw)
    return weight, scale.view(torch.float8_e4m3fn)


def codes_of(weight: torch.Tensor) -> np.ndarray:
    w = weight.numpy()
    return np.stack([w & 15, w >> 4], -1).reshape(w.shape[0], -1)


def unpack(tiles: np.ndarray, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(values float32 [N, K] without scales, scale bytes [N, K/16]) of layout "tiles", lane by lane."""
    tile_count, chunks = tiles.shape[:2]
    values = np.full((tile_count * ROWS, chunks * COLUMNS), np.nan, np.float32)
    scales = np.zeros((tile_count * ROWS, chunks * 8), np.uint8)
    for tile in range(tile_count):
        for chunk in range(chunks):
            for warp in range(4):
                part = tiles[tile, chunk, warp]
                words = part[:1024].view("<u4").reshape(2, 32, 2, 2)  # k/64, lane, k/32 % 2, row half
                first = words & np.uint32(0x9C9C9C9C)
                turned = (words >> np.uint32(2)) | (words << np.uint32(30))
                second = (turned & np.uint32(0x98989898)) | ((words << np.uint32(2)) & np.uint32(0x04040404))
                held = part[1024:].reshape(8, 4, 2, 2)  # row % 8, k/32, row half, block
                for half in range(2):
                    for lane in range(32):
                        for step in range(2):
                            for upper in range(2):
                                row = tile * ROWS + warp * 16 + upper * 8 + lane // 4
                                column = chunk * COLUMNS + half * 64 + step * 32 + 4 * (lane % 4)
                                for block, word in ((0, first), (1, second)):
                                    four = word[half, lane, step, upper : upper + 1].view(np.uint8)
                                    at = column + 16 * block
                                    values[row, at : at + 4] = (
                                        four.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * 64
                                    )
                for row in range(16):
                    at = tile * ROWS + warp * 16 + row
                    scales[at, chunk * 8 : chunk * 8 + 8] = held[row % 8, :, row // 8, :].reshape(-1)
    return values, scales


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 90), st.integers(1, 18), st.integers(0, 2**31))
def test_tiles_hold_the_weight(n, blocks, seed):
    weight, scale = random_weight(n, 16 * blocks, seed)
    tiles = pack_tiles(weight, scale)
    assert tiles.shape == (-(-n // ROWS), -(-blocks // 8), 4, 1152) and tiles.is_contiguous()
    values, scales = unpack(tiles.numpy(), n, 16 * blocks)
    assert not np.isnan(values).any()
    truth = decode(codes_of(weight))
    assert np.array_equal(values[:n, : 16 * blocks], truth)
    assert np.array_equal(scales[:n, :blocks], scale.view(torch.uint8).numpy())
    assert not values[n:].any() and not values[:, 16 * blocks :].any(), "not zero beyond the weight"
    assert not scales[n:].any() and not scales[:, blocks:].any()


def decode(codes: np.ndarray) -> np.ndarray:
    return codes.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def test_a_scale_of_minus_zero_is_packed_as_zero():
    weight, scale = random_weight(20, 64, 3)
    bits = scale.view(torch.uint8)
    bits[3, 2] = 0x80
    _, scales = unpack(pack_tiles(weight, scale).numpy(), 20, 64)
    bits[3, 2] = 0
    assert np.array_equal(scales[:20, :4], bits.numpy())


@pytest.mark.parametrize("blocks", [1, 2])
def test_clusters_that_run_at_once(blocks):
    for multiprocessors in (1, 16, 78, 114, 132, 200):
        found = [clusters_at_once(ctas, blocks, multiprocessors) for ctas in range(1, 9)]
        assert found == sorted(found, reverse=True) and found[-1] >= 1
        assert found[0] == max(1, blocks * multiprocessors)
        assert all(n == 1 or n * ctas <= blocks * multiprocessors for ctas, n in enumerate(found, 1))
    assert clusters_at_once(4, 1, 132) == 30 and clusters_at_once(4, 2, 132) == 60 and clusters_at_once(4, 1, 66) == 15


def test_packing_in_pieces_is_packing_at_once(monkeypatch):
    weight, scale = random_weight(64 * 300, 1024, 1)  # more than 16 million codes
    tiles = pack_tiles(weight, scale)
    for start in (0, 64 * 255, 64 * 299):
        part = slice(start, start + ROWS)
        assert torch.equal(tiles[start // ROWS : start // ROWS + 1], pack_tiles(weight[part], scale[part]))


def assert_all_work_is_done_once(config: dict, units: int, chunks: int) -> None:
    """Every chunk of every unit of 16 rows by exactly one warp, as kernels/hopper.cu cuts the work, and within the
    slice of K whose activations its CTA has."""
    ranks, groups, sliced = config["cluster"], config["groups"], config["sliced"]
    share, extra = divmod(chunks, ranks * sliced)
    starts = [slice_ * share + min(slice_, extra) for slice_ in range(ranks * sliced + 1)]
    assert starts[-1] == chunks and all(a < b for a, b in pairwise(starts))
    for of_cluster in {min(config["units"], units - first) for first in range(0, units, config["units"])}:
        quads, stride = -(-of_cluster // 4), groups // sliced
        for rank in range(ranks):
            done = Counter(
                (quad, slice_)
                for group in range(groups)
                for quad in range(group // sliced, quads, stride)
                for slice_ in [rank * sliced + group % sliced]
            )
            wanted = ((quad, rank * sliced + part) for quad in range(quads) for part in range(sliced))
            assert done == Counter(wanted), (config, of_cluster, rank)
            room = _room(ranks, sliced, chunks)
            assert starts[(rank + 1) * sliced] - starts[rank * sliced] <= room


@pytest.mark.parametrize(("name", "most"), [("wgmma4", 4), ("wgmma8", 8)])
def test_configurations_fit_the_machine_and_cover_the_work(name, most):
    each = family(name)
    shapes = [(s.n, s.k) for s in PAPER] + [(40, 16), (1, 4096), (151936, 4096), (248320, 5120), (576, 1536)]
    for n, k in shapes:
        for m in (1, most):
            assert each.supports("sm_90a", m, n, k, BF16, "w4a4") == (True, "")
            configs = each.configs(m, n, k, 132, "w4a4")
            assert configs
            for c in configs:
                chunks, units = -(-k // COLUMNS), -(-n // UNIT)
                kernel = (c["groups"], c["stages"], c["early"], c["blocks"])
                used = shared_bytes(most, kernel, c["cluster"], c["units"], c["sliced"], m, chunks)
                assert (used + 1024) * c["blocks"] <= 228 * 1024
                assert c["groups"] % c["sliced"] == 0 and c["cluster"] * c["sliced"] <= chunks
                assert c["cluster"] in (1, 2, 4, 8) and 1 <= c["early"] < c["stages"]
                assert_all_work_is_done_once(c, units, chunks)
                # a CTA's ring has 48 KB or more at the most blocks an SM: 4.5 TB/s need 26 KB in flight
                assert c["groups"] * c["stages"] * 4 * 1152 * c["blocks"] >= 48 * 1024


@pytest.mark.parametrize("multiprocessors", [16, 78, 132])
def test_what_is_supported_has_configurations_on_small_machines_too(multiprocessors):
    for name, m in (("wgmma4", 4), ("wgmma8", 8)):
        each = family(name)
        for n, k in ((248320, 28672), (151936, 32768), (248320, 61440), (16, 61440)):
            assert each.supports("sm_90a", m, n, k, BF16, "w4a4")[0]
            assert each.configs(m, n, k, multiprocessors, "w4a4")


def test_paper_shapes_keep_nearly_all_multiprocessors_busy():
    """The default cut of each of the paper's shapes: CTAs for 90 % of the 132 multiprocessors, in one wave of clusters,
    none of which reads more than 1.15 times its even share, and no warpgroup with over 1.4 times the mean of turns."""
    for name, m in (("wgmma4", 1), ("wgmma8", 8)):
        for shape in PAPER:
            c = family(name).configs(m, shape.n, shape.k, 132, "w4a4")[0]
            units, chunks = -(-shape.n // UNIT), -(-shape.k // COLUMNS)
            clusters, places = -(-units // c["units"]), 132 * c["blocks"]
            assert clusters <= clusters_at_once(c["cluster"], c["blocks"], 132), (shape, c)
            assert clusters * c["cluster"] >= 0.9 * places, (shape, c)
            assert c["units"] * -(-chunks // c["cluster"]) <= 1.15 * units * chunks / places, (shape, c)
            quads, lanes = -(-c["units"] // 4), c["groups"] // c["sliced"]
            turns = -(-quads // lanes) * -(-chunks // (c["cluster"] * c["sliced"]))
            assert turns <= 1.4 * quads * chunks / (c["cluster"] * c["groups"]), (shape, c)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"arch": "sm_100a"}, "not of sm_100a"), ({"m": 9}, "M=9"), ({"m": 0}, "M=0"), ({"k": 4104}, "K=4104"),
     ({"n": 0}, "N=0"), ({"dtype": torch.float32}, "neither"), ({"activations": "w4a16"}, "w4a16")],
)  # fmt: skip
def test_what_it_does_not_support(change, words):
    args = {"arch": "sm_90a", "m": 1, "n": 4096, "k": 4096, "dtype": BF16, "activations": "w4a4"} | change
    can, why = family("wgmma8").supports(**args)
    assert not can and words in why
