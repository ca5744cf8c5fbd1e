"""ModelOpt's NVFP4 fake quantization without CUDA.

ModelOpt 0.47 sends every dynamic-block quantizer through an operator that asserts CUDA. While ``cpu_fake_quantize``
is active, NVFP4 calls on CPU tensors are answered in torch by the rule of the exporter (``nvfp4.codec``); all other
calls reach ModelOpt as before. The block amax is taken as it is, the tensor-wide amax is the quantizer's.

Two differences from ModelOpt's Triton kernel, on purpose: it keeps blocks whose step is below 1e-5 at zero, and its
result is not the exporter's there; ours is the exporter's everywhere, since a checkpoint is what we compare with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from resetcli.nvfp4 import codec

NVFP4 = (codec.BLOCK, 4, 2, 8, 4)
"""Block size, bits and exponent bits of a value, bits and exponent bits of a block scale."""


def fake_quantize(x: torch.Tensor, amax: torch.Tensor) -> torch.Tensor:
    """``x`` [..., K] to NVFP4 and back, in its own shape and dtype; ``amax`` is the tensor-wide maximum.

    The global scale is amax / (6 * 448); an amax of zero leaves only zeros, which stay zeros. K need not be
    divisible by 16: the last block is filled with zeros, as ModelOpt does.
    """
    amax = amax.detach().float().amax()
    if not bool(amax > 0):
        return torch.zeros_like(x)
    short = -x.shape[-1] % codec.BLOCK
    filled = torch.nn.functional.pad(x, (0, short)) if short else x
    y = codec.fake_quantize_activation(filled, amax / (codec.E2M1_MAX * codec.E4M3_MAX))
    return y[..., : x.shape[-1]] if short else y


@contextlib.contextmanager
def cpu_fake_quantize() -> Iterator[None]:
    """Install the replacement in ModelOpt for the time of the block."""
    from modelopt.torch.quantization import tensor_quant

    original = tensor_quant.dynamic_block_quantize_op

    def op(
        inputs: torch.Tensor, block_size: int, amax: torch.Tensor | None, num_bits: int, exponent_bits: int,
        scale_num_bits: int, scale_exponent_bits: int,
    ) -> Any:  # fmt: skip
        kind = (block_size, num_bits, exponent_bits, scale_num_bits, scale_exponent_bits)
        if inputs.is_cuda or amax is None or kind != NVFP4:
            return original(inputs, *kind[:1], amax, *kind[1:])
        return fake_quantize(inputs, amax)

    tensor_quant.dynamic_block_quantize_op = op
    try:
        yield
    finally:
        tensor_quant.dynamic_block_quantize_op = original
