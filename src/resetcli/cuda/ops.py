"""The kernels as torch operations: ``resetcli::nvfp4_linear`` and ``resetcli::nvfp4_quantize``.

Operations of torch.library, with fake implementations, so that torch.compile keeps them whole and CUDA graphs capture
them; a Python call costs some microseconds, so decoding goes through graphs. They run on the device and the current
stream of their tensors, whatever the current device is. What can be checked once (shapes, scales, NaN) is checked when
a weight is prepared, the rest at every call; nothing falls back silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from resetcli.base.errors import ResetError
from resetcli.cuda import activations as acts
from resetcli.cuda.dispatch import BLOCK, Plan, dispatcher, dtype_name, target
from resetcli.cuda.families import families
from resetcli.cuda.families.base import DTYPES
from resetcli.cuda.launch import device_index

_ALIGNMENT = 16
"""Bytes; kernels load 16 at a time."""

_LIBRARY = torch.library.Library("resetcli", "DEF")
_LIBRARY.define(
    "nvfp4_linear(Tensor x, Tensor[] parts, str layouts, int n, int k, float weight_scale_2, float input_scale, "
    "str activations) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.define("nvfp4_quantize(Tensor x, float input_scale) -> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))


@dataclass(frozen=True)
class KernelWeight:
    """A weight [n, k] as the kernels read it; call it on x [..., k].

    ``parts`` holds the tensors of each layout one after the other; ``layouts`` names them with their number
    ("rows:2"). ``input_scale`` is 1 for "w4a16".
    """

    n: int
    k: int
    parts: list[torch.Tensor]
    layouts: str
    weight_scale_2: float
    input_scale: float
    activations: str

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x bfloat16 or float16 [..., k] to [..., n] in its type."""
        return torch.ops.resetcli.nvfp4_linear(
            x, self.parts, self.layouts, self.n, self.k, self.weight_scale_2, self.input_scale, self.activations
        )

    def plan(self, m: int, dtype: torch.dtype) -> Plan:
        """How ``m`` rows are computed."""
        where = target(device_index(self.parts[0].device))
        return dispatcher.plan(where, m, self.n, self.k, dtype, self.activations, layout_names(self.layouts))


def prepare_weight(
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_scale_2: torch.Tensor | float,
    input_scale: torch.Tensor | float | None,
    *,
    activations: str = "w4a4",
    layouts: Sequence[str] = ("rows",),
) -> KernelWeight:
    """Check a checkpoint's tensors (design 1.2) and lay them out for the kernels.

    Args:
        weight: uint8 [N, K/2] on a GPU, low nibble first.
        weight_scale: float8_e4m3fn [N, K/16], row-major.
        weight_scale_2, input_scale: float32 scalars; ``input_scale`` may be None with "w4a16".
        layouts: see ``dispatch.layouts_for``; "rows" shares memory with ``weight`` and ``weight_scale``.

    Raises:
        ResetError: whatever is wrong with them, by name.
    """
    n, k = check_weight(weight, weight_scale)
    scale_2 = _scalar("weight_scale_2", weight_scale_2)
    if activations == "w4a16":
        scale = 1.0
    elif input_scale is None:
        raise ResetError("the weight has no input_scale, so its activations cannot be quantized; use w4a16")
    else:
        scale = _scalar("input_scale", input_scale)
    if (bad := first_bad(weight_scale)) is not None:
        kind, row, block = bad
        raise ResetError(f"weight_scale has a {kind} at row {row}, block {block}; make the checkpoint again")
    parts: list[torch.Tensor] = []
    names = []
    for layout in sorted(set(layouts)):
        makers = [family for family in families() if family.layout == layout]
        if not makers:
            raise ResetError(f"no kernel family reads weights in layout '{layout}'")
        made = [_aligned(part) for part in makers[0].prepare(weight, weight_scale)]
        names.append(f"{layout}:{len(made)}")
        parts += made
    return KernelWeight(n, k, parts, ",".join(names), scale_2, scale, activations)


def check_weight(weight: torch.Tensor, weight_scale: torch.Tensor) -> tuple[int, int]:
    """(N, K) of a weight in the checkpoint's layout.

    Raises:
        ResetError: a wrong dtype, shape or device, or a scale tensor that is transposed.
    """
    if weight.dtype != torch.uint8 or weight.dim() != 2:
        raise ResetError(f"weight is {_kind(weight)}; the kernels read uint8 [N, K/2], two codes a byte")
    n, k = weight.shape[0], weight.shape[1] * 2
    if k < BLOCK or k % BLOCK:
        raise ResetError(f"weight has K={k}, which is not a positive multiple of {BLOCK}; leave this layer unquantized")
    if weight_scale.dtype != torch.float8_e4m3fn:
        raise ResetError(f"weight_scale is {_kind(weight_scale)}; the kernels read float8_e4m3fn [N, K/{BLOCK}]")
    if weight_scale.shape != (n, k // BLOCK):
        turned = weight_scale.shape == (k // BLOCK, n)
        hint = "it is transposed" if turned else f"for a weight of [{n}, {k}] it must be [{n}, {k // BLOCK}]"
        raise ResetError(f"weight_scale has shape {list(weight_scale.shape)}: {hint}")
    both = (("weight", weight), ("weight_scale", weight_scale))
    for name, tensor in both:
        if not tensor.is_contiguous():
            raise ResetError(f"{name} has strides {tensor.stride()}; make it row-major with .contiguous()")
    for name, tensor in both:
        if tensor.device.type != "cuda":
            raise ResetError(f"{name} is on {tensor.device}; the kernels need it on a GPU")
    if weight.device != weight_scale.device:
        raise ResetError(f"weight is on {weight.device} but weight_scale on {weight_scale.device}; move one of them")
    return n, k


def first_bad(scale: torch.Tensor) -> tuple[str, int, int] | None:
    """("NaN" or "negative value", row, block) of the first such of float8_e4m3fn scales [N, K/16]; None without any."""
    bits = scale.view(torch.uint8)
    bad = (bits >= 0x7F) & (bits != 0x80)  # -0 is a zero
    if not bool(bad.any()):
        return None
    row, block = (int(i) for i in bad.nonzero()[0])
    return "NaN" if int(bits[row, block]) & 0x7F == 0x7F else "negative value", row, block


def _scalar(name: str, value: torch.Tensor | float) -> float:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ResetError(f"{name} has shape {list(value.shape)}, not one value")
        value = value.float().item()
    if not 0 < value < float("inf"):  # NaN fails too
        raise ResetError(f"{name} is {value}, not a positive finite scale; make the checkpoint again")
    return float(value)


def _kind(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a copy of it where its start is not aligned for the kernels' loads."""
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()


@lru_cache(maxsize=64)
def layout_names(layouts: str) -> tuple[str, ...]:
    """Names of the layouts that a ``KernelWeight.layouts`` lists."""
    return tuple(item.partition(":")[0] for item in layouts.split(","))


@lru_cache(maxsize=64)
def _slices(layouts: str) -> dict[str, slice]:
    found, at = {}, 0
    for item in layouts.split(","):
        name, _, count = item.partition(":")
        found[name] = slice(at, at + int(count))
        at += int(count)
    return found


def check_input(x: torch.Tensor, k: int) -> None:
    """Raises:
    ResetError: x is not a bfloat16 or float16 tensor [..., k].
    """
    if x.dtype not in DTYPES:
        raise ResetError(f"x is {dtype_name(x.dtype)}; the kernels take bfloat16 or float16")
    if x.dim() < 1 or x.shape[-1] != k:
        raise ResetError(f"x has shape {list(x.shape)}, but the weight has K={k}")


def _linear(
    x: torch.Tensor, parts: list[torch.Tensor], layouts: str, n: int, k: int, weight_scale_2: float,
    input_scale: float, activations: str,
) -> torch.Tensor:  # fmt: skip
    check_input(x, k)
    _check_devices(x, parts)
    names = layout_names(layouts)
    _check_parts(parts, layouts, n, k)
    out = torch.empty(*x.shape[:-1], n, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    flat = _aligned(x.reshape(-1, k).contiguous())
    where = target(device_index(x.device))
    plan = dispatcher.plan(where, flat.shape[0], n, k, x.dtype, activations, names)
    prepared = tuple(parts[_slices(layouts)[plan.family.layout]])
    execute(plan, flat, prepared, out.view(-1, n), k=k, weight_scale_2=weight_scale_2, input_scale=input_scale)
    return out


def execute(
    plan: Plan, x: torch.Tensor, prepared: tuple[torch.Tensor, ...], out: torch.Tensor, *, k: int,
    weight_scale_2: float, input_scale: float,
) -> None:  # fmt: skip
    """Write ``out`` [M, N] from x [M, k] (contiguous, aligned) by ``plan``: quantization, then the product."""
    quantized = acts.quantize(x, input_scale, plan.form, pdl=bool(plan.pdl))
    alpha = weight_scale_2 if plan.form in acts.UNQUANTIZED else weight_scale_2 * input_scale
    plan.family.run(plan.config, quantized, prepared, out, alpha, n=out.shape[1], k=k, pdl=plan.pdl)


def _check_devices(x: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    if not x.is_cuda:
        raise ResetError(f"x is on {x.device}; the kernels run on a GPU (NVFP4Linear computes on a CPU)")
    for part in parts:
        if part.device != x.device:
            raise ResetError(f"x is on {x.device} but the weight on {part.device}; move one of them")


def _check_parts(parts: Sequence[torch.Tensor], layouts: str, n: int, k: int) -> None:
    """Raises:
    ResetError: a weight that ``prepare_weight`` did not make or somebody changed since.
    """
    for part in parts:
        if not part.is_contiguous() or part.data_ptr() % _ALIGNMENT:
            raise ResetError(
                f"a part of the weight is not contiguous from a {_ALIGNMENT}-byte boundary; prepare it anew"
            )
    if (rows := _slices(layouts).get("rows")) is None:
        return
    weight, scale = parts[rows]
    if weight.dtype != torch.uint8 or scale.dtype != torch.float8_e4m3fn:
        raise ResetError(f"the weight is {_kind(weight)} with scales {_kind(scale)}, not uint8 and float8_e4m3fn")
    if weight.shape != (n, k // 2) or scale.shape != (n, k // BLOCK):
        sizes = f"{list(weight.shape)} with scales {list(scale.shape)}"
        raise ResetError(f"the weight is {sizes}, not [{n}, {k // 2}] with scales [{n}, {k // BLOCK}]")


def _linear_fake(
    x: torch.Tensor, parts: list[torch.Tensor], layouts: str, n: int, k: int, weight_scale_2: float,
    input_scale: float, activations: str,
) -> torch.Tensor:  # fmt: skip
    check_input(x, k)
    return x.new_empty(*x.shape[:-1], n)


def _quantize(x: torch.Tensor, input_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    k = x.shape[-1] if x.dim() else 0
    check_input(x, k)
    if k < BLOCK or k % BLOCK:
        raise ResetError(f"x has K={k}, which is not a positive multiple of {BLOCK}")
    _check_devices(x, ())
    if x.numel() == 0:
        return _quantize_fake(x, input_scale)
    made = acts.quantize(_aligned(x.reshape(-1, k).contiguous()), input_scale, "nvfp4")
    codes, scales = made.tensors
    return codes.view(*x.shape[:-1], k // 2), scales.view(*x.shape[:-1], k // BLOCK)


def _quantize_fake(x: torch.Tensor, input_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    k = x.shape[-1] if x.dim() else 0
    check_input(x, k)
    codes = x.new_empty(*x.shape[:-1], k // 2, dtype=torch.uint8)
    return codes, x.new_empty(*x.shape[:-1], k // BLOCK, dtype=torch.float8_e4m3fn)


_LIBRARY.impl("nvfp4_linear", _linear, "CompositeExplicitAutograd")
_LIBRARY.impl("nvfp4_quantize", _quantize, "CompositeExplicitAutograd")
torch.library.register_fake("resetcli::nvfp4_linear", _linear_fake, lib=_LIBRARY)
torch.library.register_fake("resetcli::nvfp4_quantize", _quantize_fake, lib=_LIBRARY)


def nvfp4_quantize(x: torch.Tensor, input_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [..., K/2] and scales float8_e4m3fn [..., K/16] of activations x [..., K], by the checkpoint's rule.

    Raises:
        ResetError: a wrong dtype, K or device.
    """
    result: Any = torch.ops.resetcli.nvfp4_quantize(x, input_scale)
    return result
