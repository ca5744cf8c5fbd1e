"""Every kernel family and every form of activations on a real GPU, against float64 and against ``nvfp4.codec``.

One problem serves all families, types of activations and M (rows of one X), so that a run is short. Families take
part by being registered; a shape that a family does not support is left to the others.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from kernel_oracle import (
    LARGEST,
    LIBRARY_BOUND,
    SUM_BOUND,
    Case,
    activation_values,
    faults,
    make_case,
    poisoned,
    values,
)

from resetcli.cuda.families.base import EARLY, LATE
from resetcli.nvfp4 import codec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

DTYPES = (torch.bfloat16, torch.float16)
MODES = ("w4a4", "w4a16")
MS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 33, 64, 128)
PAPER = (
    (6144, 4096), (4096, 4096), (12288, 4096), (4096, 12288), (7168, 5120), (5120, 5120), (17408, 5120), (5120, 17408),
    (10240, 5120), (5120, 8192), (25600, 5120), (5120, 25600),
)  # fmt: skip
ODD = (
    (40, 16), (40, 48), (1000, 1008), (1, 4096), (2, 32), (3, 5136), (15, 1024), (129, 5136), (1000, 5120), (40, 3584),
    (65, 1056), (257, 992), (96, 18944),
)  # fmt: skip
QUANTIZED = ("nvfp4", "int8", "f16", "q16", "fragments", "panels")


@pytest.fixture(scope="session")
def arch() -> str:
    from resetcli.cuda.availability import kernels_available
    from resetcli.cuda.build import architecture

    there, why = kernels_available()
    assert there, why
    return architecture(torch.cuda.get_device_capability())


@pytest.fixture(scope="session")
def members(arch):
    """All families, everything of theirs compiled by many processes (NVRTC compiles one program at a time in each)."""
    from resetcli.cuda import activations
    from resetcli.cuda.build import build
    from resetcli.cuda.families import families

    wanted = {each for family in families() for each in family.builds(arch)} | set(activations.builds(arch))
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(build, wanted, [arch] * len(wanted)))
    return families()


def supported(family, arch: str, m: int, case: Case, dtype: torch.dtype, mode: str) -> bool:
    return family.supports(arch, m, case.n, case.k, dtype, mode)[0]


def product(family, config, case: Case, m: int, mode: str, prepared, *, pdl: bool = False) -> torch.Tensor:
    """Y of the case's first m rows; asserts that nothing beyond Y was written."""
    from resetcli.cuda.activations import quantize

    out, guard = poisoned(m, case.n, case.x.dtype)
    acts = quantize(case.x[:m], case.input_scale, family.form_for(mode), pdl=pdl)
    family.run(config, acts, prepared, out, case.alpha(mode), n=case.n, k=case.k, pdl=pdl)
    assert bool(torch.isnan(guard).all()), f"{family.name} {config} writes beyond its output"
    return out


def wrong(family, config, case: Case, m: int, mode: str, prepared) -> str:
    # Beyond 128 tokens "wide" sums as long a K in the tensor cores as the library does.
    exact = not family.name.startswith("dense") and (family.name != "wide" or m <= 128)
    sums = SUM_BOUND if exact else LIBRARY_BOUND
    assert family.error(m) == sums, "the bench judges by another bound"
    fault = faults(product(family, config, case, m, mode, prepared), case.answer[mode][:m], case.size[mode][:m], sums)
    return fault and f"{family.name} {config} {mode} M={m} N={case.n} K={case.k} {case.x.dtype}: {fault}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [*PAPER, *ODD, (151936, 4096)], ids=str)
def test_products(members, arch, shape, dtype):
    case = make_case(*shape, max(MS), dtype, seed=sum(shape))
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    found, served = [], set()
    for family in members:
        prepared = family.prepare(case.weight, case.scale)
        for mode in MODES:
            for m in MS if shape[0] < 100_000 else (1, 8, 33):
                if supported(family, arch, m, case, dtype, mode):
                    config = family.configs(m, case.n, case.k, processors, mode)[0]
                    found.append(wrong(family, config, case, m, mode, prepared))
                    served.add((mode, m))
    assert not any(found), "\n".join(filter(None, found))
    assert {(mode, m) for mode in MODES for m in (1, 8, 33)} <= served


def one_of_each_kind(configs: list[dict], m: int) -> list[dict]:
    """Every kernel with every way to cut K; how many warps or rows share a CTA changes with M."""
    kinds: dict[tuple, list[dict]] = {}
    for config in configs:
        kind = tuple(value for name, value in config.items() if name not in ("warps", "units"))
        kinds.setdefault(kind, []).append(config)
    return [kind[m % len(kind)] for kind in kinds.values()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1000, 1008), (520, 4096), (264, 5120), (72, 5136)], ids=str)
def test_all_configurations(members, arch, shape, dtype):
    case = make_case(*shape, 64, dtype, seed=5)
    found = []
    for family in members:
        prepared = family.prepare(case.weight, case.scale)
        for mode in MODES:
            for m in (1, 2, 3, 4, 5, 6, 7, 8, 12, 24, 64):
                if supported(family, arch, m, case, dtype, mode):
                    configs = family.configs(m, case.n, case.k, 132, mode)
                    if len(configs) > 48:
                        configs = one_of_each_kind(configs, m)
                    found += [wrong(family, config, case, m, mode, prepared) for config in configs]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1000, 1008), (1304, 5136), (4160, 4096)], ids=str)
def test_many_tokens(members, arch, shape, dtype):
    """Prefill: tiles that end within a warpgroup and within eight tokens, all ways to cut the work."""
    case = make_case(*shape, 600, dtype, seed=6)
    found, ways = [], set()
    for family in members:
        if family.name not in ("wide", "dense", "dense-tiles"):
            continue
        prepared = family.prepare(case.weight, case.scale)
        for mode in MODES:
            for m in (129, 251, 600):
                if supported(family, arch, m, case, dtype, mode):
                    configs = family.configs(m, case.n, case.k, 132, mode)
                    found += [wrong(family, config, case, m, mode, prepared) for config in configs]
                    ways |= {config.get("ctas", 0) > 0 for config in configs if family.name == "wide"}
    assert not any(found), "\n".join(filter(None, found))
    assert arch != "sm_90a" or ways == {False, True} or shape == (1000, 1008)


def test_an_even_cut_leaves_its_flags_lowered(members, arch):
    """So that activations serve several products, and results are bit-equal however CTAs are timed."""
    from resetcli.cuda.activations import quantize

    case = make_case(4160, 4096, 300, torch.bfloat16, seed=7)
    for family in members:
        if family.name != "wide" or not supported(family, arch, 300, case, torch.bfloat16, "w4a4"):
            continue
        prepared = family.prepare(case.weight, case.scale)
        acts = quantize(case.x, case.input_scale, "panels")
        for config in family.configs(300, case.n, case.k, 132, "w4a4"):
            outs = [torch.full((300, case.n), torch.nan, dtype=torch.bfloat16, device="cuda") for _ in range(4)]
            for out in outs:
                family.run(config, acts, prepared, out, case.alpha("w4a4"), n=case.n, k=case.k)
            assert all(torch.equal(out, outs[0]) for out in outs), config
            assert not bool(acts.tensors[1].any())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_even_cut(members, arch, dtype):
    """Each kernel that cuts all tiles evenly, alone and in pairs, with a last tile of tokens that is not full."""
    from resetcli.cuda.families.wide import _STREAMING

    wide, case = _wide(members), make_case(25600, 5120, 253, dtype, seed=10)
    if not supported(wide, arch, 253, case, dtype, "w4a4"):
        pytest.skip(f"not on {arch}")
    prepared, found = wide.prepare(case.weight, case.scale), []
    for groups, tokens in _STREAMING:
        for side in (1, 2):
            config = {"groups": groups, "tokens": tokens, "slices": 1, "side": side, "ctas": 132}
            for m in (tokens - 3, 2 * tokens - 3) if tokens < 128 else (tokens - 3,):
                found += [wrong(wide, config, case, m, mode, prepared) for mode in MODES]
    assert not any(found), "\n".join(filter(None, found))


def test_even_cuts_that_overlap_do_not_disturb_each_other(members, arch):
    """Products of the same activations, one after the other in a graph with overlapping launches: flags and parts are
    used again by a kernel that starts before the one ahead has ended."""
    from resetcli.cuda.activations import quantize

    wide, case = _wide(members), make_case(4160, 4096, 300, torch.bfloat16, seed=11)
    if not supported(wide, arch, 300, case, torch.bfloat16, "w4a4"):
        pytest.skip(f"not on {arch}")
    prepared = wide.prepare(case.weight, case.scale)
    # made ahead: nothing else shall be launched in between
    outs = [torch.empty(300, case.n, dtype=torch.bfloat16, device="cuda") for _ in range(12)]

    def chain(config, pdl: bool) -> None:
        for i, out in enumerate(outs):
            if i % 3 == 0:
                acts = quantize(case.x, case.input_scale, "panels", pdl=pdl)
            wide.run(config, acts, prepared, out, case.alpha("w4a4"), n=case.n, k=case.k, pdl=pdl)

    for config in ({"groups": 2, "tokens": t, "slices": 1, "side": s, "ctas": 132} for t in (128, 256) for s in (1, 2)):
        chain(config, False)
        want = outs[0].clone()
        assert not bool(want.isnan().any())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain(config, True)
        for _ in range(3):
            for out in outs:
                out.fill_(float("nan"))
            graph.replay()
            assert all(torch.equal(out, want) for out in outs), config


def _wide(members):
    return next(family for family in members if family.name == "wide")


def test_ablations_compute_the_same(members, arch):
    case = make_case(1024, 4096, 8, torch.bfloat16, seed=6)
    found = []
    for family in members:
        if hasattr(family, "ablations"):
            prepared = family.prepare(case.weight, case.scale)
            for m in (1, 2, 4, 8):
                for config in family.ablations(m, case.n, case.k, 132).values():
                    found.append(wrong(family, config, case, m, "w4a4", prepared))
    assert found and not any(found), "\n".join(filter(None, found))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_judge_catches_wrong_outputs(dtype):
    case = make_case(256, 1024, 4, dtype, seed=7)
    answer, size = case.answer["w4a4"], case.size["w4a4"]
    right = answer.to(dtype)
    assert faults(right, answer, size) == ""
    assert "out of bounds" in faults(torch.zeros_like(right), answer, size)
    unwritten = right.clone()
    unwritten[3, 255] = torch.nan
    assert "not finite" in faults(unwritten, answer, size)
    assert faults(right.roll(1, 1), answer, size) and faults(right.roll(1, 0), answer, size)
    assert faults(right * 1.01, answer, size)
    assert float(case.scale.float().min()) == 2.0**-9 and float(case.scale.float().max()) == 448


def test_results_are_bit_equal_again_and_in_a_graph_with_overlap(members, arch):
    """Twice the same; then a chain of dependent launches (PDL) captured and replayed with new inputs."""
    from resetcli.cuda.activations import quantize

    case = make_case(2048, 2048, 8, torch.bfloat16, seed=8)
    other = make_case(2048, 2048, 8, torch.bfloat16, seed=9)
    for family in members:
        for m in (1, 5, 8):
            if not supported(family, arch, m, case, torch.bfloat16, "w4a4"):
                continue
            prepared = family.prepare(case.weight, case.scale)
            config = family.configs(m, case.n, case.k, 132, "w4a4")[0]
            # outputs as large as inputs, so that the chain neither dies out nor overflows
            alpha, form = case.alpha("w4a4") * float(case.x.abs().max()) / LARGEST, family.form_for("w4a4")

            def chain(x, pdl, prepared=prepared, config=config, alpha=alpha, form=form, family=family):
                outs = []
                for _ in range(6):  # each reads what the one before wrote
                    out = torch.full((x.shape[0], case.n), torch.nan, dtype=x.dtype, device="cuda")
                    acts = quantize(x, case.input_scale, form, pdl=bool(pdl))
                    family.run(config, acts, prepared, out, alpha, n=case.n, k=case.k, pdl=pdl)
                    outs.append(out)
                    x = out
                return torch.cat(outs)

            plain = [chain(each.x[:m].clone(), 0) for each in (case, other, case)]
            assert torch.equal(plain[0], plain[2])
            modes = (0,) if arch in ("sm_80", "sm_86", "sm_89") else (EARLY, LATE) if family.late else (EARLY,)
            for overlap in modes:
                x = case.x[:m].clone()
                chain(x, overlap)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    result = chain(x, overlap)
                for each, want in zip((case, other, case), plain, strict=False):
                    x.copy_(each.x[:m])
                    graph.replay()
                    assert torch.equal(result, want), f"{family.name} M={m} differs in a graph, overlap {overlap}"


def test_factors_of_blocks_are_exact_at_all_magnitudes(members, arch):
    """A result of one product, while all other scales of its columns are what they are, from 2^-9 to 448: it is the
    product of two scales, whose 8 bits fit bfloat16. Cut also into more CTAs than there are multiprocessors."""
    from resetcli.cuda.activations import quantize

    n, blocks, most = 1024, 64, 8
    draw = torch.Generator().manual_seed(3)
    scale, x_scale = (
        torch.randint(1, 127, (rows, blocks), dtype=torch.uint8, generator=draw).view(torch.float8_e4m3fn).cuda()
        for rows in (n, most)
    )
    rows = torch.arange(n, device="cuda")
    block = rows % blocks  # the one of each row that counts
    weight = torch.zeros(n, blocks * 8, dtype=torch.uint8, device="cuda")
    weight[rows, block * 8] = 2  # 1.0 in its first column
    x = torch.zeros(most, blocks, 16, dtype=torch.bfloat16, device="cuda")
    x[..., 0], x[..., 1] = x_scale.bfloat16(), 6 * x_scale.bfloat16()  # 1 and 6 times the scale
    want = (scale.double()[rows, block] * x_scale.double()[:, block]).bfloat16()
    exact = [family for family in members if family.name.startswith("wgmma")]
    if not exact:
        pytest.skip(f"no family of {arch} makes factors in the tensor cores")
    cut = {"groups": 3, "stages": 5, "early": 2, "blocks": 1, "cluster": 8, "units": 1, "sliced": 1}
    for family in exact:
        prepared = family.prepare(weight, scale)
        for m in range(1, int(family.name[-1]) + 1):
            acts = quantize(x[:m].flatten(1), 1.0, family.form_for("w4a4"))
            for config in (family.configs(m, n, blocks * 16, 132, "w4a4")[0], cut):
                out = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device="cuda")
                family.run(config, acts, prepared, out, 1.0, n=n, k=blocks * 16)
                assert torch.equal(out, want[:m]), f"{family.name} {config} M={m}"


@pytest.mark.parametrize("mode", MODES)
def test_fp16_overflows_to_infinity_where_the_answer_does(members, arch, mode):
    case = make_case(512, 1024, 8, torch.float16, seed=10)
    case.weight_scale_2[mode] *= 1000.0
    answer = case.answer[mode] * 1000.0
    for family in members:
        if not supported(family, arch, 8, case, torch.float16, mode):
            continue
        config = family.configs(8, case.n, case.k, 132, mode)[0]
        y = product(family, config, case, 8, mode, family.prepare(case.weight, case.scale)).double()
        over, under = answer.abs() > 65600, answer.abs() < 65400
        assert bool(over.any()) and torch.equal(
            y[over], torch.copysign(torch.full_like(y[over], torch.inf), answer[over])
        )
        assert bool(torch.isfinite(y[under]).all())


def natural(arch: str) -> bool:
    return arch in ("sm_100a", "sm_120a")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_codes_equal_the_rule_bit_for_bit(arch, dtype):
    from resetcli.cuda.activations import quantize

    every = torch.arange(-32768, 32768, device="cuda").short().view(dtype).clone()
    every = every[torch.isfinite(every)]
    draw = torch.Generator("cuda").manual_seed(1)
    shuffled = every[torch.randint(0, every.numel(), (96 * 4096,), generator=draw, device="cuda")].view(96, 4096)
    for x, scales in (
        (shuffled, (1e-30, 1e-12, 5e-7, 1e-3, 0.037, 1.0, 333.0, 2.5e5)),
        (torch.randn(512, 5120, device="cuda", generator=draw).to(dtype), (1e-3, 0.00171, 0.00093)),
    ):
        x[0, :16] = 0.0
        x[1, :16] = -0.0
        for scale in scales:
            scale = float(torch.tensor(scale))
            packed, block_scales = codec.quantize(x, torch.tensor(scale, device="cuda"))
            got = quantize(x, scale, "nvfp4").tensors
            assert torch.equal(got[0], packed), f"codes differ at input scale {scale}"
            assert torch.equal(got[1].view(torch.uint8), block_scales.view(torch.uint8)), f"scales differ at {scale}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 16), (3, 48), (2, 1008), (5, 1120), (9, 2048), (33, 5120), (1, 25600)], ids=str)
def test_every_form_holds_the_same_values(arch, shape, dtype):
    from resetcli.cuda.activations import quantize

    case = make_case(8, shape[1], shape[0], dtype, seed=11)
    want = values(case.x, case.input_scale)
    narrow = [form for form in ("wgmma4", "wgmma8") if shape[0] <= int(form[-1])]
    for form in (*QUANTIZED, *narrow):
        got = activation_values(quantize(case.x, case.input_scale, form), natural(arch))
        assert torch.equal(got, want), form
    for form in ("fragments16", "panels16"):
        raw = quantize(case.x, None, form)
        assert torch.equal(activation_values(raw, natural(arch)), case.x.double()), form


def test_nan_spreads_over_its_block_and_infinity_saturates(arch):
    from resetcli.cuda.activations import quantize

    x = torch.randn(2, 64, device="cuda").bfloat16()
    x[0, 3], x[0, 20], x[1, 40] = torch.nan, torch.inf, -torch.inf
    want = codec.fake_quantize_activation(x, torch.tensor(1e-3, device="cuda"))
    for form in ("nvfp4", "int8", "q16"):
        got = (activation_values(quantize(x, 1e-3, form), natural(arch)).float() * 1e-3).bfloat16()
        assert bool(torch.isnan(got[0, :16]).all()), form
        torch.testing.assert_close(got[:, 16:], want[:, 16:], rtol=2**-7, atol=0)


def share_of_differences(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got != want).double().mean())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", ["nvfp4", "int8", "fragments", "panels"])
def test_fused_producers_equal_the_modules(arch, form, dtype):
    from resetcli.cuda import activations

    torch.manual_seed(3)
    for m, k in ((1, 5120), (8, 4096), (3, 1008), (2, 17408)):
        x = (torch.randn(m, k, device="cuda") * 3).to(dtype)
        weight = (torch.rand(k, device="cuda") + 0.5).to(dtype)
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        normed = weight * normed.to(dtype)
        g = float(normed.abs().max().float() / 2688)
        got = activation_values(activations.quantize_rmsnorm(x, weight, 1e-6, g, form), natural(arch))
        # torch adds the squares in another order: some values round the other way
        assert share_of_differences(got, values(normed, g)) < 2e-3

        both = (torch.randn(m, 2 * k, device="cuda") * 2).to(dtype)
        gate, up = both[:, :k], both[:, k:]
        product = F.silu(gate) * up
        g = float(product.abs().max().float() / 2688)
        got = activation_values(activations.quantize_silu(gate, up, g, form), natural(arch))
        assert share_of_differences(got, values(product, g)) < 1e-4

        h = torch.ones(1, 1, device="cuda")
        for _ in range(4):
            h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
        rotated = (x.double().view(m, -1, 16) @ h.double() / 4).view(m, k).to(dtype)
        g = float(rotated.abs().max().float() / 2688)
        got = activation_values(activations.quantize(x, g, form, rotate=True), natural(arch))
        assert share_of_differences(got, values(rotated, g)) < 1e-4


def test_misaligned_and_strided_inputs_are_read_right(arch):
    from resetcli.cuda.activations import quantize, quantize_silu

    store = torch.randn(4 * 1024 + 1, device="cuda").bfloat16()
    for x in (store[1:].view(4, 1024), store[:-1].view(1024, 4).T, store[:-1].view(2, 2048)[:, 512:1536]):
        want = values(x.contiguous(), 1e-3)
        assert torch.equal(activation_values(quantize(x, 1e-3, "nvfp4"), natural(arch)), want)
    odd = torch.randn(4, 2 * 1024 + 1, device="cuda").bfloat16()
    gate, up = odd[:, :1024], odd[:, 1025:]
    assert torch.equal(
        activation_values(quantize_silu(gate, up, 1e-3, "nvfp4"), natural(arch)),
        activation_values(quantize_silu(gate.contiguous(), up.contiguous(), 1e-3, "nvfp4"), natural(arch)),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 48), (7, 1056), (1000, 4096)], ids=str)
def test_dequantized_weights_are_exact(members, shape, dtype):
    from kernel_oracle import unpack

    from resetcli.cuda.families.dense import dequantize

    case = make_case(*shape, 1, dtype, seed=12)
    assert torch.equal(dequantize(case.weight, case.scale, dtype).double(), unpack(case.weight, case.scale))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_scale_of_zero_has_no_sign(members, arch, dtype):
    case = make_case(264, 1056, 12, dtype, seed=13)
    some = torch.rand(case.scale.shape, device="cuda") < 0.3
    plus, minus = (
        torch.where(some, zero, case.scale.view(torch.uint8)).view(torch.float8_e4m3fn) for zero in (0x00, 0x80)
    )
    for family in members:
        for mode in MODES:
            for m in (1, 4, 8, 12):
                if supported(family, arch, m, case, dtype, mode):
                    config = family.configs(m, case.n, case.k, 132, mode)[0]
                    a, b = (
                        product(family, config, case, m, mode, family.prepare(case.weight, s)) for s in (plus, minus)
                    )
                    assert torch.equal(a, b) and bool(a.isfinite().all()), f"{family.name} {mode} M={m}"
