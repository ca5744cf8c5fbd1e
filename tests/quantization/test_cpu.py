"""The CPU stand-in for ModelOpt's fake quantization equals the exporter's codes and our codec, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resetcli.nvfp4 import codec
from resetcli.quantization.cpu import cpu_fake_quantize, fake_quantize


@pytest.fixture(scope="module")
def modelopt():
    from resetcli.quantization.export import quietly

    def load():
        import modelopt.torch.quantization as mtq

        return mtq

    return quietly(load)


def exported(x: torch.Tensor, amax: torch.Tensor) -> torch.Tensor:
    """Float32 values of what ModelOpt's exporter writes for ``x`` at this tensor-wide amax; both ways its own code."""
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    scale_2 = amax.float() / (6 * 448)
    packed, scales, _ = NVFP4QTensor.quantize(x.clone(), 16, None, scale_2)
    return packed.dequantize(torch.float32, scale=scales, double_scale=scale_2, block_sizes={-1: 16})


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    spread=st.integers(0, 12),
    headroom=st.sampled_from([0.25, 1.0, 3.0]),
    zero_blocks=st.booleans(),
)
def test_equals_the_exporter_and_the_codec(modelopt, seed, dtype, spread, headroom, zero_blocks):
    """Wide and narrow block ranges, amax below and above the tensor's own, zero blocks, ties (halves of steps)."""
    torch.manual_seed(seed)
    x = torch.randn(6, 64) * torch.exp2(-spread * torch.rand(6, 4)).repeat_interleave(16, 1)
    x[0, :16] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6] * 2) * torch.tensor([1.0] * 8 + [-1.0] * 8)
    if zero_blocks:
        x[1, 16:32] = 0
    x = x.to(dtype)
    amax = x.abs().amax().float() * headroom
    ours = fake_quantize(x, amax)
    assert ours.dtype == dtype and ours.shape == x.shape
    assert torch.equal(ours, exported(x, amax).to(dtype))
    scale_2 = amax / (6 * 448)
    assert torch.equal(ours, codec.dequantize(*codec.quantize(x, scale_2), scale_2, dtype))


def test_a_zero_tensor_stays_zero():
    assert torch.equal(fake_quantize(torch.zeros(2, 32), torch.tensor(0.0)), torch.zeros(2, 32))


def test_a_last_block_that_is_not_full():
    x = torch.randn(3, 40)
    full = fake_quantize(torch.nn.functional.pad(x, (0, 8)), x.abs().amax())
    assert torch.equal(fake_quantize(x, x.abs().amax()), full[:, :40])


def test_installed_only_inside_the_block(modelopt):
    """Inside, a CPU quantizer of ModelOpt works and equals ours; outside, ModelOpt's operator is back."""
    from modelopt.torch.quantization import tensor_quant
    from modelopt.torch.quantization.nn import TensorQuantizer

    before = tensor_quant.dynamic_block_quantize_op
    quantizer = TensorQuantizer()
    quantizer.set_from_attribute_config(
        {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": (4, 3)}}
    )
    x = torch.randn(4, 32)
    quantizer.amax = x.abs().amax()
    with cpu_fake_quantize():
        assert torch.equal(quantizer(x), fake_quantize(x, x.abs().amax()))
    assert tensor_quant.dynamic_block_quantize_op is before
    with pytest.raises(ValueError), cpu_fake_quantize():
        raise ValueError
    assert tensor_quant.dynamic_block_quantize_op is before
