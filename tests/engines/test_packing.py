"""Packed layers against torch's own linear, and the row-invariance claim they make."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from resetcli.engines import packing
from resetcli.nvfp4 import codec
from resetcli.nvfp4.linear import NVFP4Linear

pytestmark = pytest.mark.skipif(not packing.available(), reason="this torch build has no MKL")


class Block(nn.Module):
    def __init__(self, bias: bool):
        super().__init__()
        self.q_proj = nn.Linear(64, 48, bias=bias)
        self.k_proj = nn.Linear(64, 16, bias=bias)
        self.v_proj = nn.Linear(64, 16, bias=False)
        self.o_proj = nn.Linear(48, 64, bias=bias)
        self.gate_proj = nn.Linear(64, 160)
        self.up_proj = nn.Linear(64, 160)

    def forward(self, x):
        y = self.o_proj(self.q_proj(x))
        return torch.cat([y, self.k_proj(x), self.v_proj(x), self.gate_proj(x), self.up_proj(x)], -1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_packed_block_equals_dense(bias, rows):
    torch.manual_seed(0)
    block = Block(bias)
    x = torch.randn(rows, 1, 64)
    with torch.inference_mode():
        want = block(x)
        weights = packing.pack_model(block)
        got = block(x)
        again = block(torch.randn(rows, 1, 64))
        same = block(x)
    assert len(weights) == 3  # q/k/v together, o, gate/up together
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert torch.equal(same, got) and not torch.equal(again, got)


def test_order_of_calls_and_recycled_inputs():
    torch.manual_seed(0)
    shared = packing.SharedInput([nn.Linear(32, 8), nn.Linear(32, 8)])
    a, b = torch.randn(2, 32), torch.randn(2, 32)
    with torch.inference_mode():
        first = shared.part(1, a)
        other = shared.part(0, b)  # another input before part 0 of the first was fetched
        assert torch.equal(shared.part(1, b), shared.weight(b)[..., 8:])
        assert torch.equal(shared.part(0, a), shared.weight(a)[..., :8])
        assert torch.equal(first, shared.weight(a)[..., 8:]) and torch.equal(other, shared.weight(b)[..., :8])
        assert shared.part(1, a).shape == (2, 8) and shared._input is None


@pytest.fixture
def two_threads():
    """With many threads MKL splits small products by row count (seen with 16), and the engine decodes one by one."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(2, before))
    yield
    torch.set_num_threads(before)


def depends_on_rows(weight: packing.PackedWeight) -> bool:
    """Of 1 to 16 rows, anywhere among 16 and in another order."""
    x, order = torch.randn(16, weight.k), torch.randperm(16)
    whole = weight(x)
    parts = (
        torch.equal(weight(x[start : start + rows].contiguous()), whole[start : start + rows])
        for rows in range(1, 17)
        for start in range(17 - rows)
    )
    return not (all(parts) and torch.equal(weight(x[order]), whole[order]))


def test_what_is_settled_is_so(two_threads):
    """Which padding a machine's library takes is its own affair; that rows keep their bits then is not."""
    torch.manual_seed(0)
    sizes = [(96, 64), (64, 1536), (512, 64)]
    weights = [packing.PackedWeight(torch.randn(n, k), None) for n, k in sizes for _ in range(2)]
    if packing.half_available():
        weights += [packing.HalfWeight(torch.randn(n, k).half().float(), None, 0.5) for n, k in sizes]
    if packing.settle_rows(weights, 16):
        assert not any(depends_on_rows(weight) for weight in weights)
        paddings = [weight.padding for weight in weights]
        assert packing.settle_rows(weights, 1) and paddings == [weight.padding for weight in weights]
        for weight, settled in zip(weights, paddings, strict=True):
            for cheaper in packing.PADDINGS[: packing.PADDINGS.index(settled)]:
                weight.padding = cheaper
                assert depends_on_rows(weight)
    else:
        assert {weight.padding for weight in weights} == {(1, 1)}
        for padding in packing.PADDINGS:
            for weight in weights:
                weight.padding = padding
            assert any(depends_on_rows(weight) for weight in weights)


def test_an_nvfp4_layer_is_packed_in_float16_without_rounding(two_threads):
    torch.manual_seed(0)
    weight = torch.randn(80, 64) * torch.logspace(-6, 6, 80, base=2)[:, None]
    scale = codec.global_scale_of(weight)
    layers = [NVFP4Linear(64, 48, bias=True, dtype=torch.float32), NVFP4Linear(64, 32)]
    for layer, part in zip(layers, weight.split([48, 32]), strict=True):
        layer.weight, layer.weight_scale = codec.quantize(part, scale)
        layer.weight_scale_2, layer.input_scale = scale, torch.tensor(0.01)
    layers[0].bias = nn.Parameter(torch.randn(48))
    x = torch.randn(7, 1, 64)
    with torch.inference_mode():
        want = torch.cat(
            [
                nn.functional.linear(layer.quantize_input(x).double(), layer.dequantized_weight(torch.float32).double())
                for layer in layers
            ],
            -1,
        )
        want[..., :48] += layers[0].bias
        shared = packing.SharedInput(layers)
        assert isinstance(shared.weight, packing.HalfWeight) == packing.half_available()
        got = torch.cat([shared.part(0, x), shared.part(1, x)], -1)
    bound = 2e-6 * want.abs().amax((0, 1))
    assert ((got - want).abs() <= bound).all()


def test_float16_is_refused_where_it_would_round():
    with pytest.raises(ValueError, match="not exact"):
        packing.HalfWeight(torch.full((16, 16), 1 / 3), None, 1.0)


def test_layers_with_scales_of_their_own_are_packed_in_float32():
    torch.manual_seed(0)
    layers = [NVFP4Linear(32, 16), NVFP4Linear(32, 16)]
    for layer, size in zip(layers, (1.0, 8.0), strict=True):
        weight = torch.randn(16, 32) * size
        layer.weight_scale_2, layer.input_scale = codec.global_scale_of(weight), torch.tensor(0.01)
        layer.weight, layer.weight_scale = codec.quantize(weight, layer.weight_scale_2)
    shared = packing.SharedInput(layers)
    assert type(shared.weight) is packing.PackedWeight
    x = torch.randn(3, 32)
    with torch.inference_mode():
        for index, layer in enumerate(layers):
            torch.testing.assert_close(shared.part(index, x), layer(x), atol=1e-4, rtol=1e-5)


class RowByRow(packing.PackedWeight):
    """Whatever the machine's library does: the same bits for each row, but for row counts that ``differs`` names."""

    def __init__(self, differs):
        super().__init__(torch.randn(64, 32), None)
        self.differs, self.weight = differs, torch.randn(64, 32)

    def _product(self, flat):
        out = torch.stack([(row * self.weight).sum(-1) for row in flat])
        return out * (1 + 1e-6 * self.differs(flat.shape[0]))


@pytest.mark.parametrize(
    ("differs", "padding"),
    [(lambda rows: False, (1, 1)), (lambda rows: rows == 1, (2, 1)), (lambda rows: rows % 4 > 0, (4, 4)),
     (lambda rows: rows in (1, 2, 7, 14), (4, 4)), (lambda rows: rows in (3, 4, 7, 12), (8, 8))],
)  # fmt: skip
def test_rows_are_added_where_their_number_counts(differs, padding):
    weights = [RowByRow(differs), RowByRow(differs)]
    assert packing.settle_rows(weights, 8) and [weight.padding for weight in weights] == [padding] * 2
    x = torch.randn(3, 1, 32)
    assert weights[0](x).shape == (3, 1, 64) and torch.equal(weights[0](x)[1:2], weights[0](x[1:2]))


def test_a_weight_that_depends_on_rows_is_noticed():
    class Drifting(packing.PackedWeight):
        def __call__(self, x):
            return super().__call__(x) * (1 + 1e-6 * (x.shape[0] == 5))

    assert not packing.settle_rows([Drifting(torch.randn(64, 32), None)], 8)


def test_fused_norms_have_the_same_bits():
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    torch.manual_seed(0)
    norms = nn.ModuleList([LlamaRMSNorm(48, 1e-5), GemmaRMSNorm(48, 1e-5)])
    x = torch.randn(5, 1, 48)
    with torch.inference_mode():
        norms[0].weight.copy_(torch.rand(48))
        before = [norm(x) for norm in norms]
        packing.fuse_norms(norms)
        assert all(torch.equal(norm(x), b) for norm, b in zip(norms, before, strict=True))
    assert "forward" in vars(norms[0])
