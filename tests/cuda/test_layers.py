"""Layers on one product: which are merged, that their outputs are theirs, what memory they hold, what falls back.

The product here is plain torch on the stacked weight (the kernels need a GPU; tests/gpu has them).
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tiny_models import make_model_dir, modelopt_metadata, nvfp4_tensors, write_checkpoint
from torch import nn

from resetcli.base.reporting import CollectingReporter
from resetcli.cuda import layers as module
from resetcli.cuda.layers import Group, GroupProduct, attach, detach, find_groups, install
from resetcli.nvfp4 import codec
from resetcli.nvfp4.linear import NVFP4Linear
from resetcli.nvfp4.loader import load_nvfp4

IDS = torch.arange(5, 45)[None]


class TorchProduct:
    """The product of a stacked weight, in torch; counts its calls."""

    def __init__(self, group: Group, weight: torch.Tensor, scale: torch.Tensor):
        first = group.layers[0]
        self.dense = codec.dequantize(weight, scale, first.weight_scale_2, torch.float64)
        self.quantizer = first
        self.calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.quantizer.activations == "w4a4":
            x = self.quantizer.quantize_input(x)
        return F.linear(x.double(), self.dense).to(x.dtype)


def put_on(model: nn.Module, *, keep: bool = True) -> list[TorchProduct]:
    """All groups of ``model`` on torch products."""
    products = []
    for group in list(find_groups(model)):
        weight, scale = group.stacked()
        products.append(TorchProduct(group, weight, scale))
        attach(group, products[-1], weight if keep else None, scale if keep else None)
    return products


def logits(model) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS).logits


@pytest.fixture(params=["llama", "qwen2", "qwen3"])  # qwen2 has biases on q/k/v, qwen3 norms behind them
def checkpoint(request, tmp_path):
    source = make_model_dir(tmp_path / "m", architecture=request.param)
    return write_checkpoint(source, tmp_path / "c", tensors=nvfp4_tensors(source)[0], metadata=modelopt_metadata())


@pytest.mark.parametrize("activations", ["w4a4", "w4a16"])
def test_a_merged_model_computes_what_it_did(checkpoint, activations):
    model = load_nvfp4(checkpoint, dtype=torch.float32, activations=activations)
    expected, before = logits(model), {name: value.clone() for name, value in model.state_dict().items()}
    products = put_on(model)
    assert len(products) == 8  # of 14 layers: qkv, o, gate/up, down, twice
    got = logits(model)
    assert [product.calls for product in products] == [1] * 8
    assert torch.allclose(got, expected, atol=1e-4, rtol=1e-4)
    after = model.state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value.dtype == after[name].dtype and torch.equal(value.float(), after[name].float())
    detach(model)
    assert torch.equal(logits(model), expected) and products[0].calls == 1


def test_nothing_is_held_twice(tiny_checkpoint):
    model = load_nvfp4(tiny_checkpoint, dtype=torch.float32)
    logits(model)  # fills the cache of dequantized weights
    put_on(model)
    attention = model.model.layers[0].self_attn
    q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
    for name in ("weight", "weight_scale"):
        base = getattr(q, name)
        assert {getattr(layer, name).untyped_storage().data_ptr() for layer in (q, k, v)} == {
            base.untyped_storage().data_ptr()
        }
        total = sum(getattr(layer, name).numel() for layer in (q, k, v))
        assert base.untyped_storage().nbytes() == total
        assert getattr(k, name).is_contiguous()
    assert not q._dense and not attention.o_proj._dense


def test_a_layout_of_the_kernels_own_replaces_the_checkpoints(tiny_checkpoint):
    model = load_nvfp4(tiny_checkpoint, dtype=torch.float32)
    expected = logits(model)
    put_on(model, keep=False)
    assert all(layer.weight.is_meta for layer in model.modules() if isinstance(layer, NVFP4Linear))
    assert torch.allclose(logits(model), expected, atol=1e-4, rtol=1e-4)
    detach(model)  # nothing to go back to
    assert torch.allclose(logits(model), expected, atol=1e-4, rtol=1e-4)


def alike(seed: int, n: int, scale: float = 0.01, input_scale: float = 0.001, **options) -> NVFP4Linear:
    draw = torch.Generator().manual_seed(seed)
    layer = NVFP4Linear(32, n, **options)
    layer.weight = torch.randint(0, 256, (n, 16), dtype=torch.uint8, generator=draw)
    layer.weight_scale = torch.rand(n, 2, generator=draw).add(0.1).to(torch.float8_e4m3fn)
    layer.weight_scale_2, layer.input_scale = torch.tensor(scale), torch.tensor(input_scale)
    return layer


class Block(nn.Module):
    def __init__(self, *layers: NVFP4Linear):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = layers

    def forward(self, x):
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)


@pytest.mark.parametrize(
    ("third", "merged"),
    [({}, True), ({"scale": 0.02}, False), ({"input_scale": 0.002}, False), ({"activations": "w4a16"}, False)],
)
def test_only_layers_of_one_scale_are_merged(third, merged):
    block = Block(alike(1, 16), alike(2, 8), alike(3, 8, **third))
    groups = list(find_groups(block))
    assert [group.names for group in groups] == (
        [["q_proj", "k_proj", "v_proj"]] if merged else [["q_proj"], ["k_proj"], ["v_proj"]]
    )
    x = torch.randn(3, 32)
    expected = block(x)
    put_on(block)
    for got, wanted in zip(block(x), expected, strict=True):
        assert torch.allclose(got, wanted, atol=1e-5)


def test_input_scales_do_not_matter_where_activations_stay_as_they_are():
    layers = [alike(i, 8, input_scale=0.001 * i, activations="w4a16") for i in (1, 2, 3)]
    assert len(list(find_groups(Block(*layers)))) == 1
    layers[1].input_scale = None
    assert len(list(find_groups(Block(*layers)))) == 1


def test_a_missing_sibling_leaves_the_others_alone():
    holder = nn.Module()
    holder.q_proj, holder.k_proj, holder.other = alike(1, 8), alike(2, 8), nn.Linear(4, 4)
    assert [group.names for group in find_groups(holder)] == [["q_proj"], ["k_proj"]]


class Counting:
    """y = x [1 2 3 ...]^T for counting products."""

    def __init__(self, n: int):
        self.factors, self.calls = torch.arange(1.0, n + 1), 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.sum(-1, keepdim=True) * self.factors


def test_parts_by_identity_of_the_input():
    product = Counting(6)
    group = GroupProduct(product, None, [2, 3, 1])
    x, y = torch.ones(2, 4), torch.ones(2, 4)
    for tensor in (x, y, x, x):
        got = [group.part(i, tensor) for i in range(3)]
        assert torch.equal(torch.cat(got, -1), 4 * product.factors.expand(2, 6))
    assert product.calls == 4
    assert group._input is None and not group._parts  # nothing is kept alive between steps
    assert torch.equal(group.part(2, x), torch.tensor([[24.0]] * 2)) and product.calls == 5  # any order
    assert torch.equal(group.part(0, x), torch.tensor([[4.0, 8.0]] * 2)) and product.calls == 5
    assert torch.equal(group.part(0, x), torch.tensor([[4.0, 8.0]] * 2)) and product.calls == 6  # again: anew
    x.mul_(2)
    assert torch.equal(group.part(0, x), torch.tensor([[8.0, 16.0]] * 2)) and product.calls == 7
    equal_but_other = x.clone()
    group.part(1, equal_but_other)
    assert product.calls == 8


def test_biases_of_some_layers():
    layers = [alike(1, 16, bias=True), alike(2, 8), alike(3, 8, bias=True)]
    for layer in layers:
        if layer.bias is not None:
            layer.bias.data = torch.randn(layer.out_features)
    block = Block(*layers)
    x = torch.randn(3, 32)
    expected = block(x)
    put_on(block)
    for got, wanted in zip(block(x), expected, strict=True):
        assert torch.allclose(got, wanted, atol=1e-5)


def test_merged_layers_compile_into_one_graph():
    block = Block(*(alike(i, n, activations="w4a16") for i, n in ((1, 16), (2, 8), (3, 8))))
    expected = block(torch.ones(3, 32))
    dense = torch.cat([layer.dequantized_weight(torch.float32) for layer in (block.q_proj, block.k_proj, block.v_proj)])
    group = next(iter(find_groups(block)))
    attach(group, lambda x: F.linear(x, dense), *group.stacked())
    compiled = torch.compile(block, fullgraph=True, backend="eager")
    with torch.inference_mode():
        for m in (3, 3, 5):
            x = torch.ones(m, 32)
            for got, wanted in zip(compiled(x), expected, strict=True):
                assert torch.allclose(got, wanted[:1].expand(m, -1), atol=1e-4)


def test_moving_a_layer_takes_it_off_its_kernel():
    layer = alike(1, 8)
    layer.kernel = lambda x: x
    layer.to(torch.float16)
    assert layer.kernel is not None
    layer.to("meta")
    assert layer.kernel is None


def test_where_there_are_no_kernels_the_model_stays_in_torch(tiny_checkpoint):
    model = load_nvfp4(tiny_checkpoint, dtype=torch.float32)
    expected = logits(model)
    reporter = CollectingReporter()
    done = install(model, dtype=torch.float32, max_batch=2, reporter=reporter)
    assert done.layers == 14 and done.on_kernels == done.merged == 0
    assert len(reporter.warnings) == 1 and "run in torch" in reporter.warnings[0] and "on cpu" in reporter.warnings[0]
    assert torch.equal(logits(model), expected)
    assert "0 of 14 NVFP4 layers" in done.describe()
    assert install(nn.Linear(2, 2), dtype=torch.float32, max_batch=1, reporter=reporter).layers == 0
    assert len(reporter.warnings) == 1


def test_one_line_of_what_was_done():
    done = module.Installed(layers=10, on_kernels=7, merged=2)
    done.reasons["K=40 is odd"] += 3
    done.slower_than_bf16 += [(8, 16, 1), (8, 16, 2), (8, 16, 3), (8, 16, 4)]
    assert done.describe() == (
        "7 of 10 NVFP4 layers run on CUDA kernels (2 merged products); the rest in torch: K=40 is odd (3); "
        "measured slower than BF16: 8x16 at M=1, 8x16 at M=2, 8x16 at M=3 and 1 more"
    )
