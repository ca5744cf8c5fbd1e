"""Every kernel that ships compiles for every architecture, without a spill; what a build defines is what is launched.

No GPU: NVRTC compiles for any architecture, and ptxas reports what a kernel uses.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from resetcli.cuda import activations, readers
from resetcli.cuda.build import ARCHITECTURES, Build, compile_build
from resetcli.cuda.families import families
from resetcli.cuda.families.gemv import Gemv, kernels
from resetcli.cuda.families.mma import Mma
from resetcli.cuda.shapes import PAPER

SHAPES = (
    (4096, 4096),
    (25600, 5120),
    (5120, 25600),
    (1000, 1008),
    (40, 48),
    (1, 16),
    (1, 4096),
    (3, 32),
    (151936, 4096),
)


@pytest.fixture(scope="module")
def compilers():
    """Processes that compile: NVRTC compiles one program at a time in each."""
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_build_compiles_without_spills(nvrtc, compilers, arch):
    wanted = {each for family in families() for each in family.builds(arch)}
    wanted |= {*activations.builds(arch), *readers.builds(arch)}
    order = sorted(wanted, key=str)
    compiled = list(zip(order, compilers.map(compile_build, order, [arch] * len(order)), strict=True))
    assert compiled
    spilled = []
    for build, result in compiled:
        assert result.resources is not None, "this NVRTC reports no resources"
        spilled += [
            f"{build} {name}: {used}"
            for name, used in result.resources.items()
            if used.spill_stores or used.spill_loads or used.stack
        ]
    assert not spilled, "\n".join(spilled)


@pytest.mark.parametrize("mode", ["w4a4", "w4a16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_configurations_name_kernels_of_shipped_builds(shape, mode):
    """A configuration that ``builds`` does not cover would fail on a user's machine only."""
    n, k = shape
    vec = 2 if k % 32 == 0 else 1
    for family in families():
        shipped = {str(build): kernels_of(build) for build in family.builds("sm_90a")}
        for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64, 100):
            if not family.supports("sm_90a", m, n, k, torch.bfloat16, mode)[0]:
                continue
            configs = family.configs(m, n, k, 132, mode)
            assert configs and len({str(sorted(config.items())) for config in configs}) == len(configs)
            for config in configs:
                if isinstance(family, Gemv):
                    arithmetic = family._arithmetic(mode, torch.bfloat16)
                    build = family._build(arithmetic, m, config.get("vec", vec))
                    assert f"{config['rows']},{config['depth']},{config['chains']}" in shipped[str(build)]
                    assert config["rows"] <= n
                elif isinstance(family, Mma):
                    from resetcli.cuda.families.mma import _build

                    for dtype in (torch.bfloat16, torch.float16):
                        assert (
                            f"{config['rows']},{config['tiles']},{config['depth']}" in shipped[str(_build(dtype, vec))]
                        )
                else:
                    continue
                assert config["warps"] <= 8 and config["warps"] % config["split"] == 0


def kernels_of(build: Build) -> set[str]:
    """The first three numbers of each kernel of a build: rows, depth, ..."""
    return set(re.findall(r"\((\d+,\d+,\d+),", str(dict(build.defines).get("KERNELS", ""))))


def test_one_token_takes_rows_for_a_full_wave_of_warps():
    """What an H200 showed of the paper's shapes: as many warps as fill 0.84 or more of what its registers hold at once,
    more than that only where no kernel's rows avoid it; of 17408x5120 five rows, not four (33 of 32)."""
    gemv = next(f for f in families() if f.name == "gemv")
    room = {kernel[:3]: 65536 // 32 // kernel[4] // 4 * 4 for kernel in kernels(1, 1, 2) if kernel[4]}
    for shape in PAPER:
        config = gemv.configs(1, shape.n, shape.k, 132, "w4a4")[0]
        load = -(-shape.n // config["rows"]) * config["split"] * config["ranks"] / 132
        held = room[config["rows"], config["depth"], config["chains"]] // config["warps"] * config["warps"]
        assert 0.84 * held <= load <= held or shape.n / 6 / 132 > 24, (shape, config, load, held)
    assert gemv.configs(1, 17408, 5120, 132, "w4a4")[0]["rows"] == 5
    assert gemv.configs(1, 10240, 5120, 132, "w4a4")[0]["rows"] == 2


def test_many_tokens_do_not_cut_k_where_rows_fill_the_machine():
    """8 tokens, 10240x5120 on an H200: whole rows, two chunks in flight take 19 us; K in two, one chunk 26."""
    gemv = next(f for f in families() if f.name == "gemv")
    for m in (4, 8):
        config = gemv.configs(m, 10240, 5120, 132, "w4a4")[0]
        assert (config["rows"], config["depth"], config["split"]) == (4, 2, 1)


def test_unsupported_products_say_why():
    gemv, half2, mma, dense = (
        next(f for f in families() if f.name == name) for name in ("gemv", "gemv-half2", "mma", "dense")
    )
    for family in (gemv, half2, mma, dense):
        for arch, m, n, k, dtype in (
            ("sm_75", 1, 64, 64, torch.bfloat16), ("sm_90a", 1, 64, 24, torch.bfloat16),
            ("sm_90a", 0, 64, 64, torch.bfloat16), ("sm_90a", 1, 0, 64, torch.bfloat16),
            ("sm_90a", 1, 64, 64, torch.float32),
        ):  # fmt: skip
            can, why = family.supports(arch, m, n, k, dtype, "w4a4")
            assert not can and why and "\n" not in why, (family.name, arch, m, n, k, dtype)
        assert family.builds("sm_75") == []
    assert not gemv.supports("sm_90a", 9, 64, 64, torch.bfloat16, "w4a4")[0]
    assert not half2.supports("sm_90a", 1, 64, 64, torch.bfloat16, "w4a16")[0]
    assert mma.supports("compute_100", 1000, 64, 64, torch.float16, "w4a16")[0]


def test_ablations_differ_in_what_they_switch_off():
    gemv = next(f for f in families() if f.name == "gemv")
    assert isinstance(gemv, Gemv)
    for m in (1, 4, 8):
        found = gemv.ablations(m, 4096, 4096, 132)
        assert found["C1"]["fuse"] is False and found["C3"]["stage"] is True
        assert (found["C2"]["rows"], found["C2"]["depth"], found["C2"]["chains"]) == (1, 1, 1)
        assert found["all on"] == gemv.configs(m, 4096, 4096, 132, "w4a4")[0]


@pytest.mark.parametrize(
    ("x", "form", "message"),
    [
        (torch.zeros(2, 24), "nvfp4", "bfloat16 and float16"),
        (torch.zeros(2, 24, dtype=torch.bfloat16), "nvfp4", "divisible by 16"),
        (torch.zeros(32, dtype=torch.bfloat16), "nvfp4", "[M, K]"),
        (torch.zeros(2, 32, dtype=torch.bfloat16), "nvfp4", "need a GPU"),
    ],
)
def test_activations_are_checked_by_name(x, form, message):
    from resetcli.base.errors import UsageError

    with pytest.raises(UsageError, match="x is") as caught:
        activations.quantize(x, 1.0, form)
    assert message in str(caught.value)


def test_scales_and_forms_are_checked():
    from resetcli.base.errors import ResetError, UsageError

    for scale in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ResetError, match="positive and finite"):
            activations._scale(scale, "nvfp4")
    with pytest.raises(UsageError, match="w4a16"):
        activations._scale(None, "int8")
    with pytest.raises(UsageError, match="unknown form"):
        activations._scale(1.0, "int9")
    assert activations._scale(None, "x16") == activations._scale(None, "fragments16") == 1.0


def test_padded_k():
    assert [activations.padded_k(k) for k in (16, 48, 64, 1008, 32, 4096, 4128)] == [64, 64, 128, 1024, 128, 4096, 4224]
