"""The family for many tokens, without a GPU: what its configurations promise, and how they cut the work.

The kernel's own arithmetic of who multiplies what is written here again from its description, and must come out at
every chunk of every tile once, with one CTA that writes the tile and waits for all others that have a part of it.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resetcli.cuda.activations import FLAGS
from resetcli.cuda.families import family
from resetcli.cuda.families.wide import _STREAMING, _build, _configs, _kernels, blocks, shared_bytes, stages
from resetcli.cuda.shapes import PAPER

WIDE = family("wide")
MANY = (1, 8, 9, 16, 33, 64, 100, 128, 129, 300, 512, 2048, 5000)
SHAPES = [(shape.n, shape.k) for shape in PAPER] + [(1, 16), (1000, 1008), (64, 151936), (151936, 4096), (257, 992)]


def test_every_kernel_fits_a_multiprocessor():
    for groups, tokens in _kernels():
        shared = shared_bytes(groups, tokens)
        assert shared <= 227 * 1024 and blocks(groups, tokens) * (shared + 1024) <= 228 * 1024
        assert stages(groups, tokens) >= 3, "two chunks under way while one is multiplied"
        # the parts of a tile that a CTA of a cluster receives lie where the ring was
        units = groups * tokens // 8
        for slices in range(2, 9):
            assert -(-units // slices) * slices * 2048 <= stages(groups, tokens) * (
                shared // stages(groups, tokens) - 16
            )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_configurations_are_of_shipped_builds_and_legal_launches(shape):
    n, k = shape
    chunks = -(-k // 128)
    shipped = {str(build) for build in WIDE.builds("sm_90a")}
    for m in MANY:
        found = _configs(m, n, k, 132)
        assert found and len(set(found)) == len(found)
        for config in map(dict, found):
            groups, tokens, slices, side, ctas = config.values()
            for bf16 in (False, True):
                assert str(_build(groups, tokens, bf16, ctas > 0)) in shipped
            assert slices * side <= 8 and slices <= chunks and side in (1, 2, 4)
            if ctas:
                assert slices == 1 and side in (1, 2) and ctas == 132 <= FLAGS and (groups, tokens) in _STREAMING
                longest = min(chunks, -(-_tiles(groups, tokens, side, m, n) * chunks // (ctas // side)))
            else:
                longest = -(-chunks // slices)
            takes = dict(_build(groups, tokens, False, ctas > 0).defines)["TAKES"]
            assert takes in (0, 16) and (m > 128 or takes or longest <= 16), "a sum too long for its error bound"


def _tiles(groups: int, tokens: int, side: int, m: int, n: int) -> int:
    return -(-n // (64 * groups * side)) * -(-m // tokens)


def tile_at(index: int, row_tiles: int, token_tiles: int) -> tuple[int, int]:
    band, rest = divmod(index, 16 * row_tiles)
    row, token = divmod(rest, min(16, token_tiles - band * 16))
    return row, band * 16 + token


@given(st.integers(1, 50), st.integers(1, 50))
def test_tiles_run_through_all_rows_and_tokens(row_tiles, token_tiles):
    seen = [tile_at(index, row_tiles, token_tiles) for index in range(row_tiles * token_tiles)]
    assert sorted(seen) == [(row, token) for row in range(row_tiles) for token in range(token_tiles)]


@settings(max_examples=200)
@given(tiles=st.integers(1, 400), chunks=st.integers(1, 210), clusters=st.integers(1, 140))
def test_an_even_cut_multiplies_everything_once_and_waits_for_no_one_too_few(tiles, chunks, clusters):
    work = tiles * chunks
    share, extra = divmod(work, clusters)
    begins = [number * share + min(number, extra) for number in range(clusters)]
    ends = [begin + share + (number < extra) for number, begin in enumerate(begins)]
    multiplied: Counter[int] = Counter()
    raised, lowered, writers = set(), [], Counter()
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        at = begin
        while at < end:
            tile, chunk = divmod(at, chunks)
            length = min(end - at, chunks - chunk)
            multiplied.update(range(at, at + length))
            at += length
            if chunk:
                assert number not in raised, "one flag and one place for parts a CTA"
                raised.add(number)
                continue
            writers[tile] += 1
            done, other = length, number + 1
            while done < chunks:
                done += share + (other < extra)
                lowered.append(other)
                other += 1
    if share:  # the family asks for at least two chunks a CTA
        assert set(multiplied) == set(range(work)) and set(multiplied.values()) == {1}
        assert writers == Counter(range(tiles))
        assert sorted(lowered) == sorted(raised), "each flag that is raised is lowered by one CTA"
        announced = {number for number, begin in enumerate(begins) if begin % chunks}
        assert announced == raised, "the warp that raises flags waits for the workers of just these"


def test_what_it_cannot_do_has_a_reason():
    for arch, m, n, k, dtype in (
        ("sm_100a", 16, 64, 64, torch.bfloat16), ("sm_90a", 0, 64, 64, torch.bfloat16),
        ("sm_90a", 16, 64, 24, torch.bfloat16), ("sm_90a", 16, 64, 64, torch.float32),
        ("sm_90a", 1 << 21, 64, 1 << 15, torch.bfloat16),
    ):  # fmt: skip
        can, why = WIDE.supports(arch, m, n, k, dtype, "w4a4")
        assert not can and why and "\n" not in why
    assert WIDE.builds("sm_100a") == []
    assert WIDE.supports("sm_90a", 1, 1, 16, torch.float16, "w4a16")[0]
    assert WIDE.form_for("w4a4") == "panels" and WIDE.form_for("w4a16") == "panels16"
