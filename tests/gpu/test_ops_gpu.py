"""The torch operations and the merged layers on a GPU: streams, devices, graphs, compilation, bad input, models.

References are float64 products of what the codec dequantizes. Which kernel serves is dispatch's choice here; the
families are tested one by one in test_kernels_gpu.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import threading
import time

import pytest
import torch
import torch.nn.functional as F

from resetcli.base.errors import ResetError
from resetcli.base.reporting import CollectingReporter
from resetcli.nvfp4 import codec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

if torch.cuda.is_available():
    from resetcli.cuda import dispatch, launch, layers, ops
    from resetcli.cuda.availability import kernels_available
    from resetcli.cuda.dispatch import target
    from resetcli.cuda.families.base import EARLY, LATE
    from resetcli.cuda.kernel_table import load_table, user_path
    from resetcli.cuda.ops import KernelWeight, execute, nvfp4_quantize, prepare_weight
    from resetcli.cuda.shapes import Shape
    from resetcli.cuda.tune import tune

BF16, FP16 = torch.bfloat16, torch.float16
TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
G, INPUT = 0.002, 0.003


@pytest.fixture(autouse=True)
def ready():
    there, why = kernels_available()
    assert there, why  # on a GPU a missing kernel is a failure, not a skip


def tensors(n: int, k: int, seed: int = 0, device: str = "cuda:0") -> tuple[torch.Tensor, torch.Tensor]:
    """Random codes and block scales over 2^-6 .. 2^2."""
    draw = torch.Generator(device=device).manual_seed(seed)
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=draw, device=device)
    spread = torch.rand(n, k // 16, generator=draw, device=device) * 8 - 6
    return codes, torch.exp2(spread).to(torch.float8_e4m3fn)


def held(n: int, k: int, activations: str = "w4a4", **more) -> KernelWeight:
    return prepare_weight(*tensors(n, k, **more), G, INPUT, activations=activations)


def rows(m: int, k: int, dtype=BF16, seed: int = 1, device: str = "cuda:0") -> torch.Tensor:
    draw = torch.Generator(device=device).manual_seed(seed)
    spread = torch.exp2(torch.rand(m, k // 16, 1, generator=draw, device=device) * 6 - 3)
    values = torch.randn(m, k // 16, 16, generator=draw, device=device) * spread
    return values.reshape(m, k).to(dtype)


def wanted(weight: KernelWeight, x: torch.Tensor, columns: slice = slice(None)) -> torch.Tensor:
    """Y float64 of codes and scales, by the codec."""
    codes, scales = (part[columns] for part in weight.parts[:2])
    one = torch.ones((), device=x.device)
    dense = codec.dequantize(codes, scales, one, torch.float32).double() * weight.weight_scale_2
    x = x.float()
    if weight.activations == "w4a4":
        x = codec.fake_quantize_activation(x, torch.tensor(weight.input_scale, device=x.device))
    return x.double() @ dense.T


def close(y: torch.Tensor, answer: torch.Tensor) -> None:
    assert y.dtype in (BF16, FP16) and torch.isfinite(y).all()
    error = (y.double() - answer).norm(dim=-1) / answer.norm(dim=-1)
    limit = 4e-3 if y.dtype == BF16 else 6e-4
    assert float(error.max()) < limit, f"relative error {float(error.max()):.2e}"


@pytest.mark.parametrize("activations", ["w4a4", "w4a16"])
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_every_m_and_odd_shapes(activations, dtype):
    for n, k in ((512, 1024), (8, 16), (24, 48), (1000, 528), (4096, 4096)):
        weight = held(n, k, activations)
        for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64, 100, 128, 257):
            x = rows(m, k, dtype)
            y = weight(x)
            assert y.shape == (m, n) and y.is_contiguous()
            close(y, wanted(weight, x))
    assert weight(x.view(1, 257, k)).shape == (1, 257, n)
    assert torch.equal(weight(x[:6].view(2, 3, k)).view(6, n), weight(x[:6]))


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_quantization_is_the_codecs(dtype):
    for m in (1, 3, 8, 65):
        x = rows(m, 4096, dtype)
        x[0, :16] = 0
        codes, scales = nvfp4_quantize(x, INPUT)
        g = torch.tensor(INPUT, device=x.device)
        assert torch.equal(codec.dequantize(codes, scales, g), codec.fake_quantize_activation(x.float(), g))
    codes, scales = nvfp4_quantize(x.view(5, 13, 4096), INPUT)
    assert codes.shape == (5, 13, 2048) and scales.shape == (5, 13, 256)


@pytest.mark.parametrize("m", [1, 4, 8, 16, 200])
def test_a_graph_replays_with_changed_inputs(m):
    first, second = held(1024, 512), held(256, 1024, seed=5)
    x = rows(m, 512)

    def chain(t: torch.Tensor) -> torch.Tensor:
        return second(first(t))

    chain(x)
    graph = torch.cuda.CUDAGraph()
    static = x.clone()
    with torch.cuda.graph(graph):
        out = chain(static)
    for seed in range(20):
        fresh = rows(m, 512, seed=100 + seed)
        static.copy_(fresh)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, chain(fresh))


def test_a_long_chain_with_overlapping_launches_is_the_chain_without():
    """Programmatic dependent launch, 200 products deep: a kernel that read or wrote too early would show."""
    k = 1024
    weights = [held(k, k, seed=seed) for seed in range(10)]
    where = target(0)
    for m in (1, 4, 8):
        x = rows(m, k)
        plan = dispatch.dispatcher.plan(where, m, k, k, BF16, "w4a4", ("rows",))
        gain = float(wanted(weights[0], x).norm() / x.double().norm()) / G  # of a product with a global scale of 1

        def chain(x: torch.Tensor, pdl: int, m=m, plan=plan, gain=gain) -> torch.Tensor:
            for step, weight in enumerate(weights * 20):
                out = torch.empty(m, k, dtype=BF16, device=x.device)
                execute(dataclasses.replace(plan, pdl=pdl), x, tuple(weight.parts), out, k=k, weight_scale_2=1 / gain,
                        input_scale=INPUT)  # fmt: skip
                x = out if step % 10 else out / out.abs().amax()
            return x

        plain = chain(x, 0)
        assert float(plain.abs().amax()) > 1e-3
        for pdl in (EARLY, LATE):
            static = x.clone()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                overlapped = chain(static, pdl)
            for _ in range(10):
                overlapped.fill_(float("nan"))
                graph.replay()
                torch.cuda.synchronize()
                assert torch.equal(overlapped, plain)


def test_a_side_stream_after_a_delayed_producer():
    weight = held(2048, 1024)
    fresh, stale = rows(4, 1024, seed=8), rows(4, 1024, seed=9)
    expected = weight(fresh).clone()
    for dispatch_on_default in (False, True):
        x = stale.clone()
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000_000)
            x.copy_(fresh)
            if not dispatch_on_default:
                y = weight(x)
        if dispatch_on_default:
            torch.cuda.current_stream().wait_stream(side)
            y = weight(x)
        torch.cuda.synchronize()
        assert torch.equal(y, expected)


def test_a_thread_that_has_no_context_yet():
    weight, x = held(64, 64), rows(2, 64)
    expected, got = weight(x), []
    worker = threading.Thread(target=lambda: got.append(weight(x).clone()))
    worker.start()
    worker.join()
    torch.cuda.synchronize()
    assert torch.equal(got[0], expected)


@TWO
def test_tensors_on_the_second_gpu_while_the_first_is_current():
    torch.cuda.set_device(0)
    expected = held(512, 256)(rows(3, 256)).cpu()
    codes, scales = (t.to("cuda:1") for t in tensors(512, 256))
    weight, x = prepare_weight(codes, scales, G, INPUT), rows(3, 256).to("cuda:1")
    y = weight(x)
    assert y.device == torch.device("cuda", 1) and torch.cuda.current_device() == 0
    assert torch.equal(y.cpu(), expected)
    side = torch.cuda.Stream("cuda:1")
    side.wait_stream(torch.cuda.current_stream(1))
    with torch.cuda.stream(side):
        z = weight(x)
    side.synchronize()
    assert torch.equal(z.cpu(), expected) and torch.cuda.current_device() == 0
    with pytest.raises(ResetError, match="x is on cuda:0 but the weight on cuda:1; move one of them"):
        weight(rows(3, 256))
    with pytest.raises(ResetError, match="weight is on cuda:1 but weight_scale on cuda:0"):
        prepare_weight(codes, tensors(512, 256)[1], G, INPUT)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile_keeps_the_operation_whole(backend):
    weight = held(512, 256)

    def layer(x):
        return F.silu(weight(x)) * 2

    compiled = torch.compile(layer, fullgraph=True, backend=backend, dynamic=True)
    with torch.inference_mode():
        for m in (2, 5, 8):
            x = rows(m, 256, seed=m)
            got, expected = compiled(x), layer(x)
            assert float((got - expected).float().norm() / expected.float().norm()) < 1e-2


def test_the_fake_implementations_tell_the_truth():
    weight, x = held(512, 256), rows(3, 256)
    linear, quantize = torch.ops.resetcli.nvfp4_linear.default, torch.ops.resetcli.nvfp4_quantize.default
    args = (x, weight.parts, weight.layouts, 512, 256, G, INPUT, "w4a4")
    # opcheck's own test of the schema compares by arithmetic, which fp8 tensors lack: by bytes instead.
    given = [x, *weight.parts]
    before = [t.view(torch.uint8).clone() for t in given]
    outputs = [linear(*args), *quantize(x, INPUT)]
    assert all(torch.equal(t.view(torch.uint8), kept) for t, kept in zip(given, before, strict=True))
    storages = [t.untyped_storage().data_ptr() for t in given + outputs]
    assert len(set(storages[len(given) :])) == len(outputs) and not set(storages[len(given) :]) & set(
        storages[: len(given)]
    )
    torch.library.opcheck(linear, args, test_utils="test_faketensor")
    torch.library.opcheck(quantize, (x, INPUT), test_utils="test_faketensor")


@pytest.mark.parametrize("n", [151936, 248320])
def test_vocabulary_sized_n(n):
    weight = held(n, 1024)
    for m in (1, 7, 8, 40, 200):
        x = rows(m, 1024)
        y = weight(x)
        assert torch.isfinite(y).all()
        for columns in (slice(0, 300), slice(n // 2, n // 2 + 300), slice(n - 300, n)):
            close(y[:, columns], wanted(weight, x, columns))


def test_nothing_in_nothing_out():
    weight = held(512, 256)
    for shape in ((0, 256), (2, 0, 256)):
        y = weight(torch.empty(shape, dtype=BF16, device="cuda"))
        assert y.shape == (*shape[:-1], 512)
        codes, scales = nvfp4_quantize(torch.empty(shape, dtype=BF16, device="cuda"), INPUT)
        assert codes.shape == (*shape[:-1], 128) and scales.shape == (*shape[:-1], 16)


def test_inputs_that_are_copied():
    weight = held(512, 256)
    x = rows(5, 256)
    expected = weight(x)
    wide = torch.zeros(5, 512, dtype=BF16, device="cuda")
    wide[:, 100:356] = x
    assert torch.equal(weight(wide[:, 100:356]), expected)
    assert torch.equal(weight(x.t().contiguous().t()), expected)
    odd = torch.zeros(5 * 256 + 1, dtype=BF16, device="cuda")[1:].view(5, 256)
    odd.copy_(x)
    assert odd.data_ptr() % 16 and torch.equal(weight(odd), expected)
    codes, scales = tensors(512, 256)
    shifted = torch.zeros(codes.numel() + 1, dtype=torch.uint8, device="cuda")[1:].view_as(codes).copy_(codes)
    assert torch.equal(prepare_weight(shifted, scales, G, INPUT)(x), expected)


def test_bad_input_is_one_line():
    weight = held(512, 256)
    codes, scales = tensors(512, 256)
    turned = scales.view(torch.uint8).t().contiguous().view(torch.float8_e4m3fn)
    for bad, kind in ((float("nan"), "NaN"), (-float("nan"), "NaN"), (-1.5, "negative value")):
        spoiled = scales.clone()
        spoiled[300, 7] = bad
        with pytest.raises(ResetError, match=f"weight_scale has a {kind} at row 300, block 7"):
            prepare_weight(codes, spoiled, G, INPUT)
    cases = [
        (lambda: prepare_weight(codes, turned, G, INPUT), "it is transposed"),
        (lambda: prepare_weight(codes.cpu(), scales.cpu(), G, INPUT), "weight is on cpu"),
        (lambda: prepare_weight(codes, scales, float("nan"), INPUT), "weight_scale_2 is nan"),
        (lambda: prepare_weight(codes, scales, G, None), "no input_scale"),
        (lambda: prepare_weight(codes, scales, G, INPUT, layouts=("none",)), "layout 'none'"),
        (lambda: weight(rows(2, 256).cpu()), "x is on cpu"),
        (lambda: dataclasses.replace(weight, parts=[codes, turned])(rows(2, 256)), r"with scales \[16, 512\]"),
        (lambda: dataclasses.replace(weight, parts=[codes, scales.float()])(rows(2, 256)), "scales float32"),
        (lambda: dataclasses.replace(weight, parts=[codes[1:], scales])(rows(2, 256)), r"the weight is \[511, 128\]"),
        (lambda: dataclasses.replace(weight, parts=[codes.t(), scales])(rows(2, 256)), "not contiguous"),
        (lambda: weight(rows(2, 256).float()), "x is float32"),
        (lambda: weight(rows(2, 128)), "the weight has K=256"),
        (lambda: nvfp4_quantize(torch.zeros(2, 40, dtype=BF16, device="cuda"), INPUT), "K=40"),
    ]
    for call, words in cases:
        with pytest.raises(ResetError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert torch.isfinite(weight(rows(2, 256))).all()  # nothing of that hurt the context


def test_a_nan_stays_in_its_row():
    for activations in ("w4a4", "w4a16"):
        weight = held(512, 256, activations)
        for m in (3, 8, 16, 200):
            x = rows(m, 256)
            clean = weight(x)
            x[1, 37] = float("nan")
            y = weight(x)
            assert y[1].isnan().all()
            others = [i for i in range(m) if i != 1]
            assert torch.equal(y[others], clean[others])


def test_capturing_an_unprepared_kernel_says_what_to_do():
    weight, x = held(512, 256), rows(2, 256)
    expected = weight(x)
    launch.unload()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(ResetError, match="not loaded yet and a CUDA graph is being captured"), torch.cuda.graph(graph):
        weight(x)
    assert torch.equal(weight(x), expected)


def test_a_launch_costs_the_host_little(capsys):
    weight, x = held(64, 64), rows(1, 64)
    out = torch.empty(1, 64, dtype=BF16, device="cuda")
    plan = weight.plan(1, BF16)
    prepared = tuple(weight.parts)

    def run() -> None:
        execute(plan, x, prepared, out, k=64, weight_scale_2=G, input_scale=INPUT)

    costs = {}
    for name, call in (("quantize + product", run), ("operation", lambda: weight(x))):
        times = []
        for _ in range(30):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(50):
                call()
            times.append((time.perf_counter() - start) / 50)
        costs[name] = sorted(times)[len(times) // 2] * 1e6
    with capsys.disabled():
        print("\nhost microseconds:", {name: round(cost, 1) for name, cost in costs.items()})
    assert costs["quantize + product"] < 100  # two launches; a busy host must not fail the suite


def cuda_model(path, dtype=BF16, activations="w4a4"):
    from resetcli.nvfp4.loader import load_nvfp4

    return load_nvfp4(path, device="cuda", dtype=dtype, activations=activations)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("dtype", "activations"), [(BF16, "w4a4"), (FP16, "w4a4"), (BF16, "w4a16")])
def test_a_models_logits(tmp_path, architecture, dtype, activations):
    """Against float32 in torch: the kernels may be no worse than torch's own 16-bit path. By medians over many inputs:
    a last bit can turn a code of an activation, and one code moves this small model's logits by several per cent."""
    from tiny_models import make_model_dir, modelopt_metadata, nvfp4_tensors, write_checkpoint

    source = make_model_dir(tmp_path / "m", architecture=architecture)
    path = write_checkpoint(source, tmp_path / "c", tensors=nvfp4_tensors(source)[0], metadata=modelopt_metadata())
    truth, plain, model = (cuda_model(path, d, activations) for d in (torch.float32, dtype, dtype))
    reporter = CollectingReporter()
    done = layers.install(model, dtype=dtype, max_batch=4, prefill=64, reporter=reporter)
    assert (done.on_kernels, done.layers, done.merged) == (14, 14, 4), done.describe()
    draw = torch.Generator().manual_seed(5)
    with torch.inference_mode():
        for shape in ((1, 1), (4, 1), (1, 40), (2, 13)):
            errors: list[tuple[float, float]] = []
            for _ in range(15):
                ids = torch.randint(5, 300, shape, generator=draw).cuda()
                answer, torchs, ours = (m(ids).logits.float() for m in (truth, plain, model))
                errors.append(tuple(float((each - answer).norm() / answer.norm()) for each in (torchs, ours)))
            base, error = (statistics.median(column) for column in zip(*errors, strict=True))
            assert error < 1.5 * base + 0.02, f"{shape}: {error:.3f} against torch's {base:.3f}"


def test_install_holds_no_second_copy(tmp_path):
    from transformers import AutoModelForCausalLM, LlamaConfig

    from resetcli.nvfp4.linear import NVFP4Linear

    config = LlamaConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=4, num_attention_heads=16,
                         vocab_size=512)  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=BF16).cuda()
    for index, (name, old) in enumerate([(n, m) for n, m in model.named_modules() if n.endswith("_proj")]):
        layer = NVFP4Linear(old.in_features, old.out_features, device="cuda")
        layer.weight, layer.weight_scale = tensors(old.out_features, old.in_features, seed=index)
        layer.weight_scale_2, layer.input_scale = torch.tensor(G, device="cuda"), torch.tensor(INPUT, device="cuda")
        model.set_submodule(name, layer)
    del old
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    done = layers.install(model, dtype=BF16, max_batch=8, prefill=256)
    torch.cuda.synchronize()
    assert done.on_kernels == 28
    stored = sum(m.weight.numel() for m in model.modules() if isinstance(m, NVFP4Linear))
    assert torch.cuda.memory_allocated() - before < 0.1 * stored


def test_the_engine_decodes_on_the_kernels(tiny_checkpoint):
    from resetcli.engines.factory import EngineOptions, open_engine
    from resetcli.engines.protocol import Request
    from resetcli.policy.settings import PolicySettings

    reporter = CollectingReporter()
    engine = open_engine(EngineOptions(path=tiny_checkpoint, device="cuda", batch_size=3), reporter)
    try:
        assert engine.info.details["kernels"].startswith("14 of 14 NVFP4 layers run on CUDA kernels (4 merged")
        assert not [warning for warning in reporter.warnings if "graph" in warning], reporter.warnings
        prompts = [[10 + i, 20, 30 + i] for i in range(5)]
        requests = [Request(str(i), tuple(p), seed=i, max_new_tokens=24) for i, p in enumerate(prompts)]
        settings = PolicySettings(name="greedy")
        done = {c.request_id: c for c in engine.generate(requests, settings)}
        assert len(done) == 5 and all(c.error is None for c in done.values()), done
    finally:
        engine.close()


def test_float32_stays_in_torch(tiny_checkpoint):
    model = cuda_model(tiny_checkpoint, torch.float32)
    reporter = CollectingReporter()
    done = layers.install(model, dtype=torch.float32, max_batch=1, reporter=reporter)
    assert done.on_kernels == 0 and "not float32" in reporter.warnings[-1]
    with torch.inference_mode():
        assert torch.isfinite(model(torch.arange(5, 9, device="cuda")[None]).logits).all()


def test_tuning_fills_the_users_table(monkeypatch, tmp_path):
    monkeypatch.setenv("RESET_CACHE", str(tmp_path))
    dispatch.dispatcher.forget()
    reporter = CollectingReporter()
    try:
        table = tune([Shape(512, 1024)], [1, 8, 20], memory=1e9, reporter=reporter)
        assert not reporter.warnings, reporter.warnings
        assert sorted(key.m for key in table.entries) == [1, 8, 32]
        name = torch.cuda.get_device_name(0)
        on_disk = load_table(user_path(name))
        assert on_disk is not None and on_disk.entries == table.entries
        for key, entry in table.entries.items():
            times = [choice.us for choice in entry.choices]
            assert times == sorted(times) and entry.bf16_us and min(times) > 0.5
            plan = dispatch.dispatcher.plan(target(0), key.m, 512, 1024, BF16, "w4a4")
            assert plan.source == "user table" and plan.family.name == entry.choices[0].family
            assert plan.us == entry.choices[0].us and plan.bf16_us == entry.bf16_us
    finally:
        monkeypatch.undo()
        dispatch.dispatcher.forget()


def test_every_family_agrees_through_the_same_door():
    """Each family that dispatch may choose, first configuration, with and without overlapping launches."""
    from resetcli.cuda.families import families

    where = target(0)
    for m, activations, family in itertools.product((1, 3, 8, 16, 64, 200), ("w4a4", "w4a16"), families()):
        n, k = 520, 1056
        if not family.supports(where.arch, m, n, k, BF16, activations)[0]:
            continue
        codes, scales = tensors(n, k)
        weight, x = prepare_weight(codes, scales, G, INPUT, activations=activations), rows(m, k)
        config = family.configs(m, n, k, where.multiprocessors, activations)[0]
        for pdl in (0, EARLY, LATE):
            plan = dispatch.Plan(family, config, pdl, family.form_for(activations), "test")
            out = torch.full((m, n), float("nan"), dtype=BF16, device="cuda")
            execute(plan, x, family.prepare(codes, scales), out, k=k, weight_scale_2=G, input_scale=weight.input_scale)
            close(out, wanted(weight, x))


def test_supported_says_what_runs():
    where = target(0)
    there, names = dispatch.supported(where.arch, 4, 4096, 4096, BF16, "w4a4")
    assert there and names
    assert ops.layout_names("rows:2") == ("rows",)
