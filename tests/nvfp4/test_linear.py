"""NVFP4Linear: its parts, its cache, and what moves and casts leave alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from resetcli.base.errors import UsageError
from resetcli.nvfp4 import codec
from resetcli.nvfp4.linear import NVFP4Linear


def make(n=24, k=64, *, bias=True, activations="w4a4", seed=0) -> NVFP4Linear:
    generator = torch.Generator().manual_seed(seed)
    layer = NVFP4Linear(k, n, bias=bias, activations=activations)
    weight = torch.randn(n, k, generator=generator)
    layer.weight_scale_2 = codec.global_scale_of(weight)
    layer.weight, layer.weight_scale = codec.quantize(weight, layer.weight_scale_2)
    layer.input_scale = torch.tensor(3.0 / (6 * 448))
    if bias:
        layer.bias.data = torch.randn(n, generator=generator)
    return layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(64,), (5, 64), (2, 3, 64)])
def test_forward_is_the_product_of_its_parts(bias, shape):
    layer = make(bias=bias)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    weight = codec.dequantize(layer.weight, layer.weight_scale, layer.weight_scale_2)
    expected = F.linear(codec.fake_quantize_activation(x, layer.input_scale), weight, layer.bias)
    assert torch.equal(layer(x), expected)
    assert not torch.equal(layer(x), F.linear(x, weight, layer.bias))  # quantizing x does something
    layer.activations = "w4a16"
    assert torch.equal(layer(x), F.linear(x, weight, layer.bias))


def test_weight_is_dequantized_once_per_dtype():
    layer = make()
    first = layer.dequantized_weight(torch.float32)
    assert layer.dequantized_weight(torch.float32) is first
    assert torch.equal(layer.dequantized_weight(torch.bfloat16), first.to(torch.bfloat16))
    layer.drop_cache()
    assert layer.dequantized_weight(torch.float32) is not first


def test_a_new_input_scale_takes_effect():
    layer = make(bias=False)
    x = torch.randn(2, 64)
    layer.quantize_input(x)
    layer.input_scale = torch.tensor(1e-4)
    assert torch.equal(layer.quantize_input(x), codec.fake_quantize_activation(x, torch.tensor(1e-4)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_casts_keep_the_stored_format(dtype):
    layer = make()
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    layer.to(dtype)
    assert layer.bias.dtype == dtype
    for name, buffer in layer.named_buffers():
        assert buffer.dtype == before[name].dtype
        assert torch.equal(buffer.view(torch.uint8) if buffer.dim() else buffer,
                           before[name].view(torch.uint8) if buffer.dim() else before[name])  # fmt: skip
    assert layer(torch.randn(2, 64, dtype=dtype)).dtype == dtype


def test_state_dict_round_trip():
    layer, other = make(seed=1), make(seed=2)
    other.load_state_dict(layer.state_dict(), assign=True)
    other.drop_cache()
    x = torch.randn(3, 64)
    assert torch.equal(layer(x), other(x))


def test_refusals():
    with pytest.raises(UsageError, match="unknown activations 'w8a8'"):
        NVFP4Linear(64, 8, activations="w8a8")
    with pytest.raises(UsageError, match="1000 is not divisible by 16"):
        NVFP4Linear(1000, 8)
    layer = make()
    layer.input_scale = None
    with pytest.raises(UsageError, match="weights only"):
        layer(torch.randn(1, 64))
