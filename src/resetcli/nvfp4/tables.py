"""Activation quantization by table look-up, for a CPU that decodes a few rows at a time.

There, each torch operation costs some microseconds of cold caches whatever it computes, because the weights stream
through the caches between two of them. `codec.fake_quantize_activation` needs some sixteen; with one input scale,
the step of a block is a step function of its largest magnitude and the E2M1 value one of the quotient, so two binary
searches and two look-ups do, half the operations for the same bits. One difference: a block with an infinity becomes
NaN (the codec saturates it), so that an overflow fails its request instead of passing for a large number.
"""

from __future__ import annotations

import math

import torch

from resetcli.nvfp4 import codec

_HALVES = 32  # bisections of the float32 bit patterns


def _below(value: float) -> float:
    """The float32 next below ``value``."""
    return torch.nextafter(torch.tensor(value), torch.tensor(-math.inf)).item()


# Ties go to the even code: up at 0.75, 1.75 and 3.5, down at the others. A search puts a value equal to a border
# below it, so borders whose ties go up stand one float lower; the one at zero keeps +0 apart from negatives.
_UP = (0.75, 1.75, 3.5)
_DOWN = (0.25, 1.25, 2.5, 5.0)
_BORDERS = torch.tensor(
    sorted([_below(b) for b in _UP] + list(_DOWN) + [-b for b in _UP] + [_below(-b) for b in _DOWN] + [_below(0.0)])
)
_VALUES = torch.tensor([*reversed(codec.E2M1_VALUES[8:]), *codec.E2M1_VALUES[:8]])


class TableQuantizer:
    """``codec.fake_quantize_activation`` for one ``input_scale`` (float32 scalar, positive), on a CPU in float32."""

    def __init__(self, input_scale: torch.Tensor):
        scales = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
        low = torch.zeros(len(scales) - 1, dtype=torch.int64)
        high = torch.full_like(low, 0x7F800000)
        for _ in range(_HALVES):
            middle = (low + high) // 2
            amax = middle.to(torch.int32).view(torch.float32)
            scale = amax.div(input_scale * codec.E2M1_MAX).clamp(codec.E4M3_MIN, codec.E4M3_MAX)
            reached = scale.to(torch.float8_e4m3fn).float() >= scales[1:]
            high = torch.where(reached, middle, high)
            low = torch.where(reached, low, middle + 1)
        borders = high.to(torch.int32).view(torch.float32)
        self._borders = torch.cat([borders, torch.tensor([math.inf])])
        self._steps = torch.cat([scales * input_scale, torch.tensor([math.nan])])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` float32 [..., K] quantized per block of 16 and back, same shape."""
        blocks = x.reshape(-1, codec.BLOCK)
        amax = torch.max_pool1d(blocks.abs().view(1, -1), codec.BLOCK).view(-1, 1)
        steps = torch.take(self._steps, torch.bucketize(amax, self._borders, right=True))
        return torch.take(_VALUES, torch.bucketize(blocks / steps, _BORDERS)).mul_(steps).view(x.shape)
