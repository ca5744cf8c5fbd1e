"""The NVFP4 number format in plain torch: round, pack, unpack, and the activation rule of a checkpoint.

A block of 16 consecutive values along K shares one E4M3 scale s; a tensor has one float32 global scale g.
A value is e2m1(code) * (s * g), product in that order in float32, as ModelOpt's exporter and its own
dequantizer have it, so that results agree bit for bit and not only nearly. Rounding to E2M1 uses float
addition of a power-of-two constant ("magic number") in place of a chain of comparisons: activations are
quantized for every layer of every token, and on a CPU at batch 1 the cost is the number of torch calls, not
the arithmetic. The price is that the trick needs a word of explanation, below, and a test over every float16.

Sources: OCP Microscaling Formats 1.0 (E2M1), ModelOpt's unified Hugging Face checkpoint, arXiv 2606.13233.
"""

from __future__ import annotations

import math

import torch

from resetcli.base.errors import ResetError

BLOCK = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_MIN = 2.0**-9
"""Least positive E4M3 number; block scales are clamped to [E4M3_MIN, E4M3_MAX] before rounding."""

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Value of each 4-bit code; bit 3 is the sign."""

_MAGNITUDE_CODE = torch.tensor([0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7], dtype=torch.uint8)  # by twice the magnitude

# Zero-dimensional tensors, since a Python number costs a torch call more than half as much again.
_EXPONENT = torch.tensor(0x7F800000, dtype=torch.int32)
_ONE = torch.tensor(0x3F800000, dtype=torch.int32)  # float32 1.0
_SHIFT = torch.tensor((22 << 23) | 0x00400000, dtype=torch.int32)  # added to a power of two's bits: times 1.5 * 2^22

_ROWS_AT_ONCE = 1 << 21  # weights dequantized per chunk: bounds the scratch to about 20 MB


def round_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Nearest E2M1 values of float32 ``x`` [...], ties to even, saturating at 6; NaN stays NaN.

    With p the power of two at or below max(|x|, 1), E2M1 has spacing p/2 there, which is the float32 spacing at
    c = 1.5 * 2^22 * p. So (x + c) - c is x rounded to that grid by the hardware, ties to even.
    """
    return _round_e2m1_(x.clone())


def _round_e2m1_(x: torch.Tensor) -> torch.Tensor:
    """``round_e2m1`` in place."""
    x.clamp_(-E2M1_MAX, E2M1_MAX)
    bits = x.view(torch.int32)
    if x.is_cuda:  # the constants live on the CPU
        c = bits.bitwise_and(0x7F800000).clamp_(min=0x3F800000).add_(int(_SHIFT)).view(torch.float32)
    else:
        c = torch.maximum(torch.bitwise_and(bits, _EXPONENT), _ONE).add_(_SHIFT).view(torch.float32)
    return x.add_(c).sub_(c)


def global_scale_of(x: torch.Tensor) -> torch.Tensor:
    """Tensor-wide scale max|x| / (6 * 448), float32 scalar; 1.0 for an all-zero tensor, which has no scale of its own.

    (ModelOpt exports 0 there, and NaN block scales with it.)
    """
    scale = x.abs().amax().float() / (E2M1_MAX * E4M3_MAX)
    return torch.where(scale == 0, torch.ones_like(scale), scale)


def quantize(x: torch.Tensor, global_scale: torch.Tensor | float) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and block scales of ``x`` [..., K], any float dtype.

    s = e4m3(clamp(amax / (6 g), 2^-9, 448)), code = e2m1(x / (s g)); a block of zeros gets s = 1 and codes 0;
    a negative value that rounds to zero gets code 8, a zero of either sign code 0.

    Args:
        x: values, K divisible by 16.
        global_scale: g, float32 scalar, positive and finite.

    Returns:
        packed codes uint8 [..., K/2], even k in the low nibble; scales float8_e4m3fn [..., K/16].

    Raises:
        ResetError: K is not divisible by 16, ``x`` has a value that is not finite, or g is not positive and finite.
    """
    k = x.shape[-1]
    if k % BLOCK:
        raise ResetError(f"cannot quantize a tensor of {k} columns to NVFP4: not divisible by {BLOCK}; leave it out")
    g = torch.as_tensor(global_scale, dtype=torch.float32, device=x.device).reshape(())
    if not (bool(g > 0) and math.isfinite(float(g))):
        raise ResetError(f"NVFP4 global scale is {float(g)}; it must be positive and finite")
    blocks = x.float().reshape(*x.shape[:-1], k // BLOCK, BLOCK)
    amax = blocks.abs().amax(-1)
    if not bool(torch.isfinite(amax).all()):
        raise ResetError("cannot quantize a tensor with NaN or infinite values to NVFP4")
    scales = amax / (g * E2M1_MAX)
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    scales = scales.clamp(E4M3_MIN, E4M3_MAX).to(torch.float8_e4m3fn)
    scaled = blocks / (scales.float() * g).unsqueeze(-1)
    doubled = round_e2m1(scaled).abs_().mul_(2).to(torch.int64)
    codes = _MAGNITUDE_CODE.to(x.device)[doubled] | (scaled < 0).to(torch.uint8).mul_(8)
    codes = codes.reshape(*x.shape[:-1], k // 2, 2)
    return codes[..., 0] | (codes[..., 1] << 4), scales


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Codes uint8 [..., K], 0 to 15, of packed [..., K/2]."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def dequantize(
    packed: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Values [..., K] in ``dtype`` of packed codes uint8 [..., K/2], scales e4m3 [..., K/16], g float32 scalar.

    e2m1(code) * (s * g) in float32, then one rounding to ``dtype``. Works in chunks of rows, so that the scratch
    stays small beside the result.
    """
    shape = (*packed.shape[:-1], packed.shape[-1] * 2)
    packed, scales = packed.reshape(-1, packed.shape[-1]), scales.reshape(-1, scales.shape[-1])
    k = packed.shape[-1] * 2
    table = torch.tensor(E2M1_VALUES, device=packed.device)
    pairs = torch.stack((table.repeat(16), table.repeat_interleave(16)), dim=-1)  # [256, 2]: low nibble first
    out = torch.empty(packed.shape[0], k, dtype=dtype, device=packed.device)
    rows = max(1, _ROWS_AT_ONCE // k)
    for start in range(0, packed.shape[0], rows):
        part = slice(start, start + rows)
        values = torch.nn.functional.embedding(packed[part].int(), pairs).view(-1, k // BLOCK, BLOCK)
        values *= (scales[part].float() * global_scale).unsqueeze(-1)
        out[part] = values.view(-1, k)
    return out.view(shape)


def fake_quantize_activation(
    x: torch.Tensor, input_scale: torch.Tensor, six_scales: torch.Tensor | None = None
) -> torch.Tensor:
    """``x`` [..., K] as the checkpoint's kernels see it: quantized per block of 16 and back, in x's dtype.

    s = e4m3(clamp(amax / (6 g), 2^-9, 448)), y = e2m1(x / (s g)) * (s g) in float32, g = ``input_scale``
    (float32 scalar): the rule by which ModelOpt exports, applied to activations. (ModelOpt's own Triton fake
    quantization differs in one corner: it zeroes blocks with s g below 1e-5.) A zero block stays zero, NaN spreads
    over its block, infinity saturates. ``six_scales`` is ``6 * input_scale`` if the caller has it at hand.
    """
    six = input_scale * E2M1_MAX if six_scales is None else six_scales
    blocks = (x if x.dtype == torch.float32 else x.float()).reshape(-1, BLOCK)
    # Pooling, since amax over runs of 16 is slower from 8 rows on; and no name for the temporary: kept alive, it
    # doubled the time of 256 rows (page faults). As measured, one CPU thread.
    amax = torch.max_pool1d(torch.abs(blocks).view(1, -1), BLOCK).view(-1, 1) if x.numel() else blocks[:, :1]
    steps = amax.div_(six).clamp_(E4M3_MIN, E4M3_MAX).to(torch.float8_e4m3fn).to(torch.float32).mul_(input_scale)
    y = _round_e2m1_(torch.div(blocks, steps)).mul_(steps).view(x.shape)
    return y if x.dtype == torch.float32 else y.to(x.dtype)
