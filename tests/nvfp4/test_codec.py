"""The codec against ml_dtypes, NumPy and ModelOpt's own tensor class: every comparison is of bits, not of nearness."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resetcli.base.errors import ResetError
from resetcli.nvfp4 import codec

E2M1 = ml_dtypes.float4_e2m1fn
E4M3 = ml_dtypes.float8_e4m3fn


def oracle_e2m1(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -6, 6).astype(E2M1).astype(np.float32)


def oracle_scales(x: np.ndarray, g: np.float32) -> np.ndarray:
    """Block scales of x [M, K] float32, as E4M3, in float32 arithmetic throughout."""
    amax = np.abs(x.reshape(x.shape[0], -1, 16)).max(-1)
    with np.errstate(over="ignore"):
        s = amax / (np.float32(6) * g)
    s[s == 0] = 1
    return np.clip(s, np.float32(2**-9), np.float32(448)).astype(E4M3)


def oracle_fake(x: np.ndarray, g: np.float32) -> np.ndarray:
    step = (oracle_scales(x, g).astype(np.float32) * g)[..., None]
    with np.errstate(over="ignore"):  # the quotient of a value far beyond the global scale saturates
        return (oracle_e2m1(x.reshape(x.shape[0], -1, 16) / step) * step).reshape(x.shape)


def wide(rows: int, k: int, seed: int) -> torch.Tensor:
    """Values over many binades, with zero blocks, zeros of both signs and exact ties among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, k, generator=generator) * torch.exp2(
        torch.randint(-30, 12, (rows, k // 16, 1), generator=generator)
    ).expand(-1, -1, 16).reshape(rows, k)
    x.view(rows, -1, 16)[:, ::5] = 0
    x[:, 1::16] = -0.0
    x[:, 16:32] = torch.tensor([6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25] * 2) * 448 * 0.01
    return x


def test_rounding_of_every_float16():
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    finite = torch.isfinite(x)
    assert finite.sum() == 63488
    np.testing.assert_array_equal(codec.round_e2m1(x[finite]).numpy(), oracle_e2m1(x[finite].numpy()))
    assert torch.isnan(codec.round_e2m1(x[torch.isnan(x)])).all()
    assert codec.round_e2m1(torch.tensor([torch.inf, -torch.inf])).tolist() == [6, -6]


def test_rounding_of_random_bit_patterns_and_beside_every_tie():
    bits = torch.randint(-(2**31), 2**31, (4_000_000,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    x = bits.view(torch.float32)
    near = torch.rand(2_000_000, generator=torch.Generator().manual_seed(1)) * 16 - 8
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
    beside = np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(9))])
    x = torch.cat([x[torch.isfinite(x)], near, torch.from_numpy(np.concatenate([beside, -beside]))])
    assert len(x) > 5_900_000
    np.testing.assert_array_equal(codec.round_e2m1(x).numpy(), oracle_e2m1(x.numpy()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("g", [0.01, 3e-5, 1e-3])
def test_activation_rule_against_numpy(dtype, g):
    x = wide(37, 576, seed=3).to(dtype)
    x[torch.isinf(x)] = 0
    got = codec.fake_quantize_activation(x, torch.tensor(g))
    assert got.dtype == dtype and got.shape == x.shape
    expected = torch.from_numpy(oracle_fake(x.float().numpy(), np.float32(g))).to(dtype)
    assert torch.equal(got, expected)
    assert len(got.float().abs().unique()) > 50  # the comparison is not about zeros


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100), min_size=16, max_size=16),
    g=st.floats(width=32, min_value=2.0**-60, max_value=2.0**60),
)
def test_activation_rule_on_any_block(values, g):
    x = torch.tensor([values])
    np.testing.assert_array_equal(
        codec.fake_quantize_activation(x, torch.tensor(g)).numpy(), oracle_fake(x.numpy(), np.float32(g))
    )


@pytest.mark.parametrize("g", [0.01, 3e-5])
def test_activation_rule_is_modelopts(g):
    """Quantized and dequantized by ModelOpt's exporter class, block scales included."""
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    x, scale = wide(23, 576, seed=5), torch.tensor(g)
    stored, s, g2 = NVFP4QTensor.quantize(x.clone(), 16, None, scale)
    expected = stored.dequantize(torch.float32, scale=s, double_scale=g2, block_sizes={-1: 16})
    assert torch.equal(codec.fake_quantize_activation(x, scale), expected)


def test_odd_activations():
    g = torch.tensor(0.01)
    x = torch.zeros(3, 32)
    x[1, 3], x[2, 20] = torch.nan, torch.inf
    y = codec.fake_quantize_activation(x, g)
    assert torch.equal(y[0], torch.zeros(32))
    assert torch.isnan(y[1, :16]).all() and not y[1, 16:].any()
    assert y[2, 20] == 6 * (448 * g) and y[2].isfinite().all()
    assert not codec.fake_quantize_activation(torch.full((1, 16), 1e-12), g).any()  # far below the least step
    assert codec.fake_quantize_activation(torch.empty(0, 32), g).shape == (0, 32)
    inner = torch.randn(4, 32).t().contiguous().t()  # not contiguous
    assert torch.equal(codec.fake_quantize_activation(inner, g), codec.fake_quantize_activation(inner.contiguous(), g))
    before = inner.clone()
    codec.fake_quantize_activation(inner, g)
    assert torch.equal(inner, before)  # the input is left alone


def test_packing_against_ml_dtypes_and_modelopt():
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    x = wide(41, 208, seed=7)
    g = codec.global_scale_of(x)
    packed, scales = codec.quantize(x, g)
    assert packed.dtype == torch.uint8 and packed.shape == (41, 104) and scales.shape == (41, 13)

    expected_scales = oracle_scales(x.numpy(), np.float32(g))
    np.testing.assert_array_equal(scales.view(torch.uint8).numpy(), expected_scales.view(np.uint8))
    scaled = x.numpy().reshape(41, 13, 16) / (expected_scales.astype(np.float32) * np.float32(g))[..., None]
    codes = np.clip(scaled, -6, 6).astype(E2M1).view(np.uint8) & 15
    codes[scaled == 0] = 0  # ml_dtypes keeps the sign of a zero; the format's exporters do not
    np.testing.assert_array_equal(codec.unpack(packed).numpy(), codes.reshape(41, 208))
    assert (codec.unpack(packed) == 8).any()  # negatives that round to zero keep their sign

    stored, s, _ = NVFP4QTensor.quantize(x.clone(), 16, None, g)
    assert torch.equal(stored._quantized_data, packed) and torch.equal(s.view(torch.uint8), scales.view(torch.uint8))
    theirs = stored.dequantize(torch.float32, scale=s, double_scale=g, block_sizes={-1: 16})
    assert torch.equal(codec.dequantize(packed, scales, g), theirs)
    assert torch.equal(codec.dequantize(packed, scales, g, torch.bfloat16), theirs.to(torch.bfloat16))


def test_dequantize_every_byte_with_every_scale(monkeypatch):
    packed = torch.arange(256, dtype=torch.uint8).repeat_interleave(8).view(256, 8)
    scales = torch.tensor([b for b in range(256) if b & 127 != 127], dtype=torch.uint8).view(torch.float8_e4m3fn)
    scales = scales.repeat(2)[:256].view(256, 1)
    g = torch.tensor(0.0123)
    values = np.array(codec.E2M1_VALUES, np.float32)
    codes = np.stack([packed.numpy() & 15, packed.numpy() >> 4], -1).reshape(256, 16)
    expected = values[codes] * (scales.float().numpy() * np.float32(g))
    np.testing.assert_array_equal(codec.dequantize(packed, scales, g).numpy(), expected)
    monkeypatch.setattr(codec, "_ROWS_AT_ONCE", 16 * 7)  # 7 rows at a time, the last chunk shorter
    np.testing.assert_array_equal(codec.dequantize(packed, scales, g).numpy(), expected)


def test_quantizing_a_second_time_changes_nothing():
    x = wide(8, 64, seed=9)
    g = codec.global_scale_of(x)
    first = codec.quantize(x, g)
    again = codec.quantize(codec.dequantize(*first, g), g)
    assert torch.equal(codec.dequantize(*first, g), codec.dequantize(*again, g))


def test_all_zero_tensor_is_safe():
    x = torch.zeros(4, 32)
    g = codec.global_scale_of(x)
    packed, scales = codec.quantize(x, g)
    assert float(g) == 1 and not packed.any() and (scales.float() == 1).all()
    assert not codec.dequantize(packed, scales, g).any()


@pytest.mark.parametrize(
    ("x", "g", "words"),
    [
        (torch.ones(2, 1000), 1.0, "1000 columns"),
        (torch.ones(2, 16), 0.0, "global scale is 0.0"),
        (torch.ones(2, 16), float("nan"), "global scale is nan"),
        (torch.full((2, 16), torch.nan), 1.0, "NaN"),
    ],
)
def test_refusals(x, g, words):
    with pytest.raises(ResetError, match=words):
        codec.quantize(x, g)
