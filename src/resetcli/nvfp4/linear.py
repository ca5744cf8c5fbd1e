"""A linear layer on an NVFP4 weight, in plain torch.

The layer keeps the checkpoint's tensors and dequantizes the weight once per dtype, on first use: a CPU has no
4-bit arithmetic, so decoding from the cache is the fastest that plain torch offers, at the price of the memory
of an unquantized weight. On a GPU the CUDA kernels stand in for that: whoever has some sets ``kernel`` (see
``resetcli.cuda.layers``); this folder knows none. Engines may use the parts too: ``quantize_input``,
``dequantized_weight`` and the raw buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from resetcli.base.errors import UsageError
from resetcli.nvfp4 import codec

ACTIVATIONS = ("w4a4", "w4a16")
GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of sibling layers that read the same input, so that one product can serve them."""


class NVFP4Linear(nn.Module):
    """y = q(x) W^T + b with W in NVFP4 (design 1.2).

    Buffers: ``weight`` uint8 [N, K/2]; ``weight_scale`` float8_e4m3fn [N, K/16]; ``weight_scale_2`` and
    ``input_scale`` float32 scalars (``input_scale`` None for a weight-only checkpoint). ``bias``: parameter [N] or
    None. ``activations``: "w4a4" quantizes x by the checkpoint's rule, "w4a16" leaves it alone. Buffers start
    uninitialized; a loader assigns them. ``kernel``, if set, computes the whole of ``forward``, bias included; moving
    the layer to another device unsets it.
    """

    weight: torch.Tensor
    weight_scale: torch.Tensor
    weight_scale_2: torch.Tensor
    input_scale: torch.Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        activations: str = "w4a4",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        if activations not in ACTIVATIONS:
            raise UsageError(f"unknown activations '{activations}' (known: {', '.join(ACTIVATIONS)})")
        if in_features % codec.BLOCK:
            raise UsageError(f"in_features {in_features} is not divisible by {codec.BLOCK}, as NVFP4 needs")
        self.in_features = in_features
        self.out_features = out_features
        self.activations = activations
        blocks = in_features // codec.BLOCK
        self.register_buffer("weight", torch.empty(out_features, in_features // 2, dtype=torch.uint8, device=device))
        scales = torch.empty(out_features, blocks, dtype=torch.float8_e4m3fn, device=device)
        self.register_buffer("weight_scale", scales)
        self.register_buffer("weight_scale_2", torch.empty((), dtype=torch.float32, device=device))
        self.register_buffer("input_scale", torch.empty((), dtype=torch.float32, device=device))
        self.bias: nn.Parameter | None
        if bias:
            values = torch.empty(out_features, dtype=dtype, device=device)
            self.bias = nn.Parameter(values, requires_grad=False)
        else:
            self.register_parameter("bias", None)
        self.kernel: Callable[[torch.Tensor], torch.Tensor] | None = None
        self._dense: dict[torch.dtype, torch.Tensor] = {}
        self._six: tuple[torch.Tensor, torch.Tensor] | None = None  # an input scale and six times it

    def quantize_input(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [..., K] after the checkpoint's activation quantization, same shape and dtype (W4A4 or not)."""
        scale = self.input_scale
        if scale is None:
            raise UsageError("this checkpoint quantizes weights only; its activations have no scale")
        if self._six is None or self._six[0] is not scale:
            self._six = (scale, scale * codec.E2M1_MAX)
        return codec.fake_quantize_activation(x, scale, self._six[1])

    def dequantized_weight(self, dtype: torch.dtype) -> torch.Tensor:
        """The weight [N, K] in ``dtype``, rounded once from float32; made at the first call and kept."""
        if (dense := self._dense.get(dtype)) is None:
            with torch.no_grad():
                dense = codec.dequantize(self.weight, self.weight_scale, self.weight_scale_2, dtype)
            self._dense[dtype] = dense
        return dense

    def drop_cache(self) -> None:
        """Forget dequantized weights: after new tensors are assigned, or to free memory."""
        self._dense.clear()
        self._six = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x float [..., K] to [..., N] in x's dtype."""
        if self.kernel is not None:
            return self.kernel(x)
        if self.activations == "w4a4":
            x = self.quantize_input(x)
        return F.linear(x, self.dequantized_weight(x.dtype), self.bias)

    def _apply(self, fn: Any, recurse: bool = True) -> NVFP4Linear:
        # model.to(dtype) is about arithmetic; the stored format must survive it, so only moves reach the scales.
        stored = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)
        for name, old in stored.items():
            new = self._buffers[name]
            if new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
            if new is not None and new.device != old.device:
                self.kernel = None
        self.drop_cache()
        return self

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, activations={self.activations}"
        )
