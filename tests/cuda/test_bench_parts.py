"""What stands around the bench: means, tables of tuning, reasons, parts without a GPU, readers and compilation."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.files import write_json
from resetcli.base.reporting import CollectingReporter
from resetcli.cli.main import main
from resetcli.cuda import ablation, activation_cost, layer_chain, machine, readers, tune
from resetcli.cuda import summary as means
from resetcli.cuda.activations import FORMS
from resetcli.cuda.backends import backends
from resetcli.cuda.bench import run_bench
from resetcli.cuda.build import ARCHITECTURES, compile_build
from resetcli.cuda.case import kernel_columns
from resetcli.cuda.dispatch import Target
from resetcli.cuda.families import families
from resetcli.cuda.families.base import LATE
from resetcli.cuda.kernel_backends import FamilyBackend, alone_plan, family_plan
from resetcli.cuda.kernel_table import Entry, KernelTable, Key, Timed, file_name, load_table
from resetcli.cuda.peers import TorchInt4
from resetcli.cuda.plot import check_plot
from resetcli.cuda.precompile import needed, precompile
from resetcli.cuda.problem import make_problem
from resetcli.cuda.shapes import PRESETS, Shape
from resetcli.cuda.suite import Elapsed, Parts, _modes, run_suite
from resetcli.cuda.timing import Candidate

H200 = Target("NVIDIA H200", "sm_90a", 132)


def row(backend: str, n: int, m: int, us: float, base: float, **more):
    return {
        "backend": backend, "n": n, "k": 64, "m": m, "us": us, "speedup": base / us, "slower_than_bf16": us > base,
        "of_read": None, "correct": True, **more,
    }  # fmt: skip


def ours(n: int, m: int, us: float, base: float, alone: float, read: float):
    return row("gemv", n, m, us, base, alone_us=alone, read_us=read, pdl_read_us=read / 2, of_read=read / alone)


def test_means_by_hand():
    rows = [
        row("torch-bf16", 1, 1, 8.0, 8.0), row("torch-bf16", 2, 1, 18.0, 18.0), row("peer", 1, 1, 12.0, 8.0),
        ours(1, 1, 4.0, 8.0, 2.0, 1.0), ours(2, 1, 9.0, 18.0, 8.0, 1.0), ours(1, 8, 10.0, 8.0, 4.0, 2.0),
    ]  # fmt: skip
    found = means.summarize(rows)
    first = next(item for item in found["by_m"] if item["backend"] == "gemv" and item["m"] == 1)
    assert first["shapes"] == 2 and first["us"] == pytest.approx(6) and first["speedup"] == pytest.approx(2)
    assert first["alone_us"] == pytest.approx(4) and first["of_read"] == pytest.approx(0.25)  # sqrt(1/2 * 1/8)
    assert first["of_pdl_read"] == pytest.approx((0.5 / 4 * 0.5 / 9) ** 0.5)
    assert first["over"] == {"peer": {"speedup": pytest.approx(3), "shapes": 1}}
    eight = next(item for item in found["by_m"] if item["m"] == 8)
    assert eight["slower_than_bf16"] == ["1x64"]
    assert found["m8_over_m1"] == {"gemv": pytest.approx(2.5)} and found["m8_over_m1_alone"]["gemv"] == 2
    assert found["best_of_read"]["8"] == pytest.approx(0.5)
    faster = {**ours(1, 8, 10.0, 8.0, 2.0, 2.0), "backend": "kernels-w4a16", "activations": "w4a16"}
    assert means.summarize([*rows, faster])["best_of_read"] == found["best_of_read"]
    assert all(len(line) == len(means.COLUMNS) for line in means.table(found))
    json.dumps(found, allow_nan=False)


def test_a_wrong_backend_has_no_mean():
    rows = [row("torch-bf16", 1, 1, 8.0, 8.0), row("fast", 1, 1, 1.0, 8.0, correct=False)]
    assert [item["backend"] for item in means.summarize(rows)["by_m"]] == ["torch-bf16"]
    assert means.summarize([])["by_m"] == []


def test_geometric_mean():
    assert means.geometric_mean([2.0, 8.0]) == pytest.approx(4)
    assert means.geometric_mean([]) is None and means.geometric_mean([1.0, 0.0]) is None


def test_share_is_of_the_product_alone():
    product, read = Candidate("a", [], 0, [], [4e-6, 4e-6]), Candidate("r", [], 0, [], [3e-6])
    found = kernel_columns(9000, {"x": 1}, product, {False: read})
    assert found["of_read"] == pytest.approx(0.75) and found["pdl_read_us"] is None
    assert found["read_gb_s"] == pytest.approx(3.0) and found["alone_config"] == {"x": 1}
    assert kernel_columns(9000, {}, Candidate("a", [], 0, []), {})["of_read"] is None


def test_table_of_tuning_ships_verbatim(tmp_path: Path):
    """What --tune-output writes is what the loader of shipped tables reads."""
    table = KernelTable("NVIDIA H200", {}, {"arch": "sm_90a"})
    choices = [Timed("gemv", {"rows": 2}, True, 3.5, {"rows": 4}), Timed("dense", {}, False, 9.0)]
    table.entries[Key(1, 64, 64, "bfloat16", "w4a4")] = Entry(choices, 8.0)
    path = tmp_path / file_name("NVIDIA H200")
    assert path.name == "nvidia-h200.json"
    write_json(path, json.loads(json.dumps(table.to_json())))
    found = load_table(path)
    assert found is not None and found.entries == table.entries and found.about == table.about


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch):
    """``tune._tune_one`` with a clock of its own: a configuration takes as long as its place in the list says."""
    timed: list[tuple[str, dict]] = []
    monkeypatch.setattr(torch.cuda, "Stream", object)
    monkeypatch.setattr(tune, "quantize", lambda x, scale, form: form)
    monkeypatch.setattr(tune, "_fault", lambda plan, *rest: timed.append((plan.family.name, plan.config)))
    monkeypatch.setattr(tune, "time_quick", lambda thunks, *, side: 1e-6 * len(timed))

    def clock(candidates, *, seconds, least, most, failed):
        for place, candidate in enumerate(candidates):
            candidate.seconds = [(place + 1) * 1e-6] * least

    monkeypatch.setattr(tune, "time_cuda", clock)
    operands = SimpleNamespace(
        n=4096, k=4096, weight_scale_2=1.0, plain=[torch.zeros(2, 2)], prepared=lambda family: [(), ()],
        rows=lambda m: (torch.zeros(m, 4096), 1.0), answer=lambda *args: None,
    )  # fmt: skip

    def run(seconds, thorough, m=1):
        timed.clear()
        run.reporter = CollectingReporter()
        entry = tune._tune_one(operands, H200, m, torch.bfloat16, "w4a4", seconds, thorough, run.reporter)
        return entry, timed

    return run


def test_tuning_tries_all_of_the_thorough_families_and_the_first_of_others(tuned, tmp_path):
    entry, timed = tuned(None, ("gemv", "wgmma4"))
    count = {name: sum(each == name for each, _ in timed) for name, _ in timed}
    for family in families():
        configs = family.configs(1, 4096, 4096, 132, "w4a4")
        assert count[family.name] == (len(configs) if family.name in ("gemv", "wgmma4") else 1)
    assert [choice.us for choice in entry.choices] == sorted(choice.us for choice in entry.choices)
    assert {choice.family for choice in entry.choices} == set(count)
    assert all(choice.alone is not None and choice.alone_us for choice in entry.choices) and entry.bf16_us
    table = KernelTable("NVIDIA H200", {Key(1, 4096, 4096, "bfloat16", "w4a4"): entry})
    write_json(tmp_path / "t.json", table.to_json())
    again = load_table(tmp_path / "t.json")
    assert again is not None and again.entries == table.entries


def test_what_cannot_be_timed_is_left_out_and_told(tuned, monkeypatch):
    """Of gemv the first configuration with the next launch late, and all products alone: no memory for their graphs."""
    gemv = next(family for family in families() if family.name == "gemv")
    broken = gemv.configs(1, 4096, 4096, 132, "w4a4")[0]

    def quick(thunks, *, side):
        if thunks[0].func is not tune.execute:
            raise RuntimeError("out of memory")
        plan = thunks[0].args[0]
        if plan.config == broken and plan.pdl == LATE:
            raise RuntimeError("out of memory\nwith a stack")
        return 1e-6

    monkeypatch.setattr(tune, "time_quick", quick)
    entry, _ = tuned(None, ("gemv",))
    assert {choice.family for choice in entry.choices} == {family.name for family in families()}
    found = next(choice for choice in entry.choices if choice.family == "gemv")
    assert found.config != broken and found.alone is None and found.alone_us is None
    told = [message for message in tuned.reporter.warnings if "out of memory" in message]
    assert any("is left out" in message and str(broken) in message for message in told)
    assert any("alone cannot be timed" in message for message in told) and not any("\n" in message for message in told)


def test_what_is_fast_by_chance_may_be_the_fastest_alone_only(tuned, monkeypatch):
    wide = next(family for family in families() if family.name == "wide")
    configs = wide.configs(16, 4096, 4096, 132, "w4a4")
    chance = [config for config in configs if not wide.steady(config, 16, 4096, 4096, 132)]
    assert chance and len(chance) < len(configs)
    assert all(config["groups"] == 2 and not config["ctas"] for config in chance)

    def quick(thunks, *, side):
        plan = thunks[0].args[0] if thunks[0].func is tune.execute else None
        config = thunks[0].args[0] if plan is None else plan.config
        return 1e-6 if config in chance else 2e-6

    def second_round(candidates, *, seconds, least, most, failed):
        for candidate in candidates:
            candidate.seconds = [quick(candidate.thunks, side=None)] if candidate.name != "bf16" else [3e-6]

    monkeypatch.setattr(tune, "time_quick", quick)
    monkeypatch.setattr(tune, "time_cuda", second_round)
    entry, _ = tuned(None, ("wide",), 16)
    found = next(choice for choice in entry.choices if choice.family == "wide")
    assert found.config not in chance and found.us == 2.0
    assert found.alone in chance and found.alone_us == 1.0


def test_tuning_out_of_time_keeps_the_likely_ones(tuned):
    entry, timed = tuned(0.0, None)
    for family in families():
        configs = family.configs(1, 4096, 4096, 132, "w4a4")[: tune.LEAST]
        assert [config for name, config in timed if name == family.name] == configs
    assert len(entry.choices) == len(families())


def test_products_with_x_as_it_is(monkeypatch):
    """Backend "kernels-w4a16" asks for, tells and does W4A16; so do the plans of a family."""
    from resetcli.cuda import kernel_backends

    backend = next(each for each in backends(["kernels-w4a16"]) if each.name == "kernels-w4a16")
    asked = []
    monkeypatch.setattr(kernel_backends, "target", lambda index: H200)
    monkeypatch.setattr(kernel_backends, "device_index", lambda device: 0)
    monkeypatch.setattr(kernel_backends.dispatcher, "measured", lambda *args: asked.append(args[-1]))
    wide = next(each for each in families() if each.name == "wide")
    product = (torch.device("cuda"), 16, 4096, 4096, torch.bfloat16)
    assert backend.plan(*product).form in ("panels16", "fragments16", "x16") and not backend.quantizes
    assert backend.describe(*product)["activations"] == "w4a16"
    family_plan.cache_clear()
    plan = family_plan(wide, H200, 16, 4096, 4096, torch.bfloat16, "w4a16")
    assert (
        plan.form == "panels16" and alone_plan(plan, H200, 16, 4096, 4096, torch.bfloat16, "w4a16").form == "panels16"
    )
    assert asked == ["w4a16", "w4a16"]
    family_plan.cache_clear()


def test_what_is_compiled_is_what_will_run():
    both = backends(["kernels", "kernels-w4a16"])
    assert _modes(both, Parts()) == {"w4a4", "w4a16"} and _modes(backends(["kernels"]), Parts()) == {"w4a4"}
    assert _modes(backends(["gemv"]), Parts(tune=True, activations=["w4a16"])) == {"w4a4", "w4a16"}
    assert _modes(backends(["torch-bf16"]), Parts(activations=["w4a16"])) == {"w4a4"}


def test_a_family_runs_what_its_table_says(monkeypatch):
    family = next(each for each in families() if each.name == "gemv")
    configs = family.configs(1, 4096, 4096, 132, "w4a4")
    family_plan.cache_clear()
    from resetcli.cuda.kernel_backends import dispatcher

    monkeypatch.setattr(dispatcher, "measured", lambda *a: None)
    plan = family_plan(family, H200, 1, 4096, 4096, torch.bfloat16)
    assert (plan.config, plan.pdl, plan.source) == (configs[0], True, "cost model")
    family_plan.cache_clear()
    monkeypatch.setattr(dispatcher, "measured", lambda *a: Timed("gemv", configs[3], False, 1.0, configs[2]))
    plan = family_plan(family, H200, 1, 4096, 4096, torch.bfloat16)
    assert (plan.config, plan.pdl, plan.source) == (configs[3], False, "table")
    alone = alone_plan(plan, H200, 1, 4096, 4096, torch.bfloat16)
    assert alone.config == configs[2] and not alone.pdl
    family_plan.cache_clear()


def test_what_cannot_run_here_is_listed_with_the_reason():
    names = ["kernels", "kernels-w4a16", "gemv", "torch-int4-g32", "marlin-nvfp4", "bitsandbytes-fp4"]
    found = run_bench([1], [Shape(64, 64)], device="cpu", seconds=0.02, memory=1e6, names=names)
    assert found["ok"] and {item["backend"] for item in found["skipped"]} == set(names)
    assert all("GPU" in item["why"] for item in found["skipped"])
    assert {row["backend"] for row in found["rows"]} == {"torch-bf16"}


def test_defaults_by_device():
    on_gpu, on_cpu = ({each.name for each in backends(None, kind)} for kind in ("cuda", "cpu"))
    assert {family.name for family in families()} | {
        "kernels",
        "kernels-w4a16",
        "torch-bf16",
        "torch-int4-g128",
    } <= on_gpu
    assert on_cpu == {"nvfp4-w4a4", "nvfp4-w4a16", "torch-bf16", "torch-fp32"}


def test_int4_truth():
    problem = make_problem(Shape(8, 256), 2, seed=1)
    draw = torch.Generator().manual_seed(2)
    scale = (torch.rand(8, 8, generator=draw) + 0.5).bfloat16()  # [K/32, N]
    both = torch.stack([scale, torch.zeros_like(scale)], -1)
    operand = SimpleNamespace(value=(None, both, problem.packed))
    x = problem.x.bfloat16()
    found, size = TorchInt4(32).truth(operand, x)
    for n in range(8):
        w = [((int(problem.packed[n, k // 2]) >> (4 if k % 2 == 0 else 0) & 15) - 8) * float(scale[k // 32, n])
             for k in range(256)]  # fmt: skip
        right = (x.double() * torch.tensor(w, dtype=torch.float64)).sum(1)
        assert torch.allclose(found[:, n], right, rtol=1e-12)
        assert bool((size[:, n] >= right.abs()).all())


def test_operands_of_a_family_are_copies():
    problem = make_problem(Shape(64, 128), 1, seed=1)
    for family in families():
        backend = FamilyBackend(family)
        one = backend.load(problem, torch.device("cpu"), torch.bfloat16)
        two = backend.duplicate(one)
        assert one.weight_bytes == 64 * 128 * 9 // 16
        for a, b in zip(one.value.prepared, two.value.prepared, strict=True):
            assert a.data_ptr() != b.data_ptr() != problem.packed.data_ptr()
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_parts_without_a_gpu(tmp_path):
    parts = Parts(tune=True, ablate=True)
    with pytest.raises(ResetError, match="--tune, --ablate: no CUDA kernels here") as caught:
        run_suite([1], [Shape(64, 64)], device="cpu", parts=parts)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="'gemm'"):  # before anything runs, a missing GPU included
        run_suite([1], [Shape(64, 64)], device="cpu", names=["gemm"], parts=parts)
    kept: list[str] = []
    found = run_suite(
        [1], [Shape(64, 64), Shape(32, 64)], device="cpu", seconds=0.02, given_commit="abc",
        save=lambda document: kept.append(json.dumps(document)),
    )  # fmt: skip
    assert found["commit"] == "abc" and found["parts_failed"] == {} and found["ok"]
    assert [len(json.loads(text)["rows"]) for text in kept] == [4, 8, 8, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tune-seconds", "5"], "go with --tune"),
        (["--tune", "--tune-families", "gemm"], "unknown kernel family 'gemm'"),
        (["--tune-activations", "w4a16"], "go with --tune"),
        (["--tune", "--tune-activations", "w8a8"], "unknown activation mode 'w8a8'"),
        (["--device", "cpu", "--layers", "--activation-quant"], "--layers, --activation-quant: no CUDA kernels"),
        (["--plot", "figure.txt"], ".png, .svg, .pdf"),
    ],
)
def test_command_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench-kernels", "--M", "1", "--shapes", "64x64", *arguments]) in (1, 2)
    assert message in capsys.readouterr().err


def test_plot_wants_matplotlib():
    with pytest.raises(UsageError, match="must end in"):
        check_plot(Path("figure.jpeg"))
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(ResetError, match="pip install matplotlib"):
            check_plot(Path("figure.png"))


def test_elapsed_time_stands_before_each_line():
    inner = CollectingReporter()
    reporter = Elapsed(inner)
    reporter.info("one")
    reporter.warn("two")
    with reporter.phase("three", 1) as advance:
        advance(1)
    assert [line.split("] ")[1] for line in (*inner.infos, *inner.warnings, *inner.phases)] == ["one", "two", "three"]


def test_nvidia_smi_line():
    line = "NVIDIA H200, 580.1, 1980, 3201, 1980, 3201, 120.5, 700.00, 33\n"
    found = machine.parse_smi(line)
    assert found is not None and found["clocks.sm"] == "1980" and found["driver_version"] == "580.1"
    assert machine.parse_smi("No devices were found") is None
    assert machine.commit("abc") == "abc"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_reads_fit_the_architecture(nvrtc, arch):
    compiled = compile_build(readers.builds(arch)[0], arch)
    found = readers.variants(arch)
    assert len(found) >= 9 and len({readers.label(each) for each in found}) == len(found)
    for name, ctas, threads, shared in found:
        assert name in (compiled.resources or {name: None})
        assert threads <= (128 if name == "read_bulk" else 512)
        assert ctas * shared <= 227 * 1024 and (ctas * threads <= 2048 or not shared)
    assert readers.builds("sm_75") == []


def test_what_is_compiled_ahead():
    found = needed("sm_90a", [1, 4], [4096])
    shipped = {build for family in families() for build in family.builds("sm_90a")}
    gemv = [dict(build.defines) for build in found if build.source == "gemv.cu"]
    assert {macros["TOKENS"] for macros in gemv} == {1, 4} and {macros["VEC"] for macros in gemv} == {2}
    assert {macros["ARITH"] for macros in gemv} == {1, 2} and any(macros["STAGE"] for macros in gemv)
    assert all(build in shipped for build in found if build.source in ("mma.cu", "hopper.cu", "dequant.cu"))
    assert len({str(build) for build in found if build.source == "quantize.cu"}) == sum(
        f is not None for f in FORMS.values()
    )
    assert any(dict(build.defines).get("VEC") == 1 for build in needed("sm_90a", [1], [48]))
    both = needed("sm_90a", [1, 4], [4096], {"w4a4", "w4a16"})
    more = [dict(build.defines) for build in both if build not in found]
    assert {macros.get("ARITH", 3) for macros in more} == {3} and {macros.get("X_BF16", 1) for macros in more} == {1}
    assert {build.source for build in both if build not in found} == {"gemv.cu", "mma.cu", "wide.cu"}


def test_compiling_ahead_fills_the_cache(nvrtc, kernel_cache):
    reporter = CollectingReporter()
    precompile(readers.builds("sm_90a"), "sm_90a", processes=2, reporter=reporter)
    assert reporter.warnings == [] and len(list((kernel_cache / "kernels").glob("*.cubin"))) == 1


def test_tables_of_the_other_parts():
    rows = [
        {"n": n, "k": 64, "m": 8, "off": off, "us": us, "over_all_on": us / 2, "correct": off != "C3"}
        for n in (1, 2) for off, us in (("all on", 2.0), ("C1", 4.0 * n), ("C3", 1.0))
    ]  # fmt: skip
    found = ablation.means(rows)
    assert [(item["off"], item["shapes"]) for item in found] == [("all on", 2), ("C1", 2)]
    assert found[1]["over_all_on"] == pytest.approx(8**0.5)
    assert all(len(line) == len(ablation.COLUMNS) for line in ablation.table({"means": found}))
    cost = [
        {"m": 1, "k": 64, "form": None, "kind": "torch rmsnorm", "us": 9.0},
        {"m": 1, "k": 64, "form": None, "kind": "torch fused rmsnorm", "us": 4.0},
        {"m": 1, "k": 64, "form": "int8", "kind": "silu", "us": 2.0},
    ]
    assert activation_cost.table({"rows": cost}) == [
        ["1", "64", "torch", "", "", "9.00", ""], ["1", "64", "torch fused", "", "", "4.00", ""],
        ["1", "64", "int8", "", "", "", "2.00"],
    ]  # fmt: skip
    chain = [{"preset": "qwen3-8b", "m": 1, "correct": False, "why": "no memory"}]
    assert layer_chain.table({"rows": chain})[0][-1] == "no memory"
    assert all(len(PRESETS[name]) == 4 for name in layer_chain.PRESET_NAMES)
