"""Activations in the form that a kernel family reads, in one launch: quantized, or only laid out anew.

The rule is the checkpoint's, as ``nvfp4.codec`` states it, bit for bit; kernels/quantize.cu says how. Forms differ in
what the reader wants per value (4-bit codes, int8 for dp4a, ready fragments for the tensor cores), not in value, so
families can be compared on the same codes. Fused variants take the place of a layer's RMSNorm or of the MLP's
SiLU(gate) * up and round in between as those modules do; the sum in RMSNorm runs in another order than torch's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from resetcli.base.errors import ResetError, UsageError, unknown_name

if TYPE_CHECKING:
    from resetcli.cuda.build import Build

BLOCK = 16
FORMS = {
    "nvfp4": 0, "int8": 1, "f16": 2, "q16": 3, "fragments": 4, "fragments16": 5, "wgmma4": 6, "wgmma8": 7,
    "panels": 8, "panels16": 9, "x16": None,
}  # fmt: skip
"""Form to the FORM macro of quantize.cu; "x16" is X itself and needs no kernel.

nvfp4        packed codes uint8 [M, K/2], scales float8_e4m3fn [M, K/16]
int8         2 * e2m1 int8, flat in ``lane_piece`` order (nvfp4.cuh); float32 [.., 2] in ``lane_scale`` order: the
             scale, and int bits. Room up to a whole chunk of K, undefined there
f16          e2m1 float16, flat in ``lane_piece`` and pair order, scales float32 in ``lane_scale`` order; room as above
q16          e2m1 * scale in X's type [M, K]: dequantized but for the global factor
fragments    the same in float16 as tensor-core fragments, flat, padded with zeros
fragments16  X itself as fragments, in its own type
wgmma4       e2m1 as E4M3 bytes, and scales, as kernels/hopper.cu reads them for at most 4 tokens, flat, zero beyond K,
             scales undefined beyond M
wgmma8       the same for at most 8 tokens
panels       e2m1 * scale float16 as kernels/wide.cu reads it, flat: [K/128][M/8 rounded up][16][8 tokens][8 values],
             zero beyond K, undefined beyond M; int32 [256] of zeros, by which that kernel's CTAs wait for each other
panels16     X itself as panels, in its own type
"""
UNQUANTIZED = ("x16", "fragments16", "panels16")
PANELS = ("panels", "panels16")
FLAGS = 256
"""Words beside panels."""
_SUFFIX = {torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Activations:
    """X [m, k] in ``form``; ``tensors`` as ``FORMS`` lists them; ``dtype`` that of X."""

    form: str
    m: int
    k: int
    dtype: torch.dtype
    tensors: tuple[torch.Tensor, ...]


def quantize(
    x: torch.Tensor, input_scale: float | None, form: str, *, rotate: bool = False, pdl: bool = False
) -> Activations:
    """``x`` bf16 or fp16 [M, K] on a GPU in ``form``; ``input_scale`` is None for the forms that do not quantize.

    Args:
        rotate: first a 16-point Hadamard transform of each block over 4, rounded to x's type.
        pdl: let the kernel start before the stream's previous one has ended.

    Raises:
        UsageError: unknown form, or not a matrix of 16-bit floats with K divisible by 16 on a GPU.
        ResetError: ``input_scale`` is not positive and finite.
    """
    x = _matrix(x, "x")
    m, k = x.shape
    scale = _scale(input_scale, form)
    if form == "x16" and not rotate:
        return Activations(form, m, k, x.dtype, (x,))
    if form == "x16":
        raise UsageError("a block rotation alone needs a form with a kernel; use fragments16")
    x = _aligned(x)
    result, buffers = _allocate(form, m, k, x)
    if m:
        name = f"quantize_{_SUFFIX[x.dtype]}{'_rotated' if rotate else ''}"
        _launch(form, name, _blocks(form, m, k), (x, *buffers, scale, m, k), x.device, pdl)
    return result


def quantize_silu(
    gate: torch.Tensor, up: torch.Tensor, input_scale: float | None, form: str, *, pdl: bool = False
) -> Activations:
    """silu(gate) * up, both bf16 or fp16 [M, K], in ``form``. Halves of one [M, 2K] matrix are read where they lie.

    Rounded to the 16-bit type after silu and after the product, as torch's modules round. Raises as ``quantize``.
    """
    if gate.shape != up.shape or gate.dtype != up.dtype or gate.device != up.device:
        raise UsageError(
            f"gate {list(gate.shape)} {gate.dtype} on {gate.device} and up {list(up.shape)} {up.dtype} "
            f"on {up.device} differ"
        )
    _check(gate, "gate")
    m, k = gate.shape
    scale = _scale(input_scale, form)
    if form == "x16":
        raise UsageError("silu is fused into a quantizing kernel; with x16 there is none")
    if any(half.stride(1) != 1 or half.stride(0) != gate.stride(0) or half.stride(0) % 8 for half in (gate, up)):
        gate, up = gate.contiguous(), up.contiguous()
    gate, up = _aligned(gate), _aligned(up)
    result, buffers = _allocate(form, m, k, gate)
    if m:
        stride = gate.stride(0) if m > 1 else k
        args = (gate, up, *buffers, scale, m, k, stride)
        _launch(form, f"silu_quantize_{_SUFFIX[gate.dtype]}", _blocks(form, m, k), args, gate.device, pdl)
    return result


def quantize_rmsnorm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, input_scale: float | None, form: str, *, pdl: bool = False
) -> Activations:
    """RMSNorm of ``x`` [M, K] with ``weight`` [K] of the same type, in ``form``.

    x * rsqrt(mean(x^2) + eps) in float32, rounded, times weight, rounded, as transformers' Llama and Qwen3 norms do.
    Raises as ``quantize``.
    """
    x = _matrix(x, "x")
    m, k = x.shape
    scale = _scale(input_scale, form)
    if weight.shape != (k,) or weight.dtype != x.dtype or weight.device != x.device:
        raise UsageError(
            f"the norm's weight is {list(weight.shape)} {weight.dtype} on {weight.device}; x wants [{k}] {x.dtype} "
            f"on {x.device}"
        )
    if form == "x16":
        raise UsageError("the norm is fused into a quantizing kernel; with x16 there is none")
    x, weight = _aligned(x), _aligned(weight.contiguous())
    result, buffers = _allocate(form, m, k, x)
    if m:
        threads = min(1024, -(-k // BLOCK // 32) * 32)
        args = (x, weight, *buffers, scale, eps, m, k)
        rows = m if form in PANELS else _rows(form, m)
        _launch(form, f"rmsnorm_quantize_{_SUFFIX[x.dtype]}", (rows, threads), args, x.device, pdl)
    return result


def builds(arch: str) -> list[Build]:
    """All compilations that quantization uses."""
    return [_build(form) for form, number in FORMS.items() if number is not None]


def padded_k(k: int) -> int:
    """K as fragments pad it: whole chunks of 128, or of 64 where K is not divisible by 32."""
    chunk = 128 if k % 32 == 0 else 64
    return -(-k // chunk) * chunk


def lane_room(k: int) -> int:
    """Blocks of a token in the forms "int8" and "f16": whole chunks of 64, or of 32 where K is not divisible by 32."""
    chunk = 64 if k % 32 == 0 else 32
    return -(-k // BLOCK // chunk) * chunk


def _build(form: str) -> Build:
    from resetcli.cuda.build import Build

    return Build("quantize.cu", (("FORM", FORMS[form] or 0),))


def _allocate(form: str, m: int, k: int, x: torch.Tensor) -> tuple[Activations, tuple[torch.Tensor | None, ...]]:
    """The result, and the two pointers that kernels take."""

    def new(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=x.device)

    blocks = k // BLOCK
    tensors: tuple[torch.Tensor, ...]
    if form == "nvfp4":
        tensors = (new(m, k // 2, dtype=torch.uint8), new(m, blocks, dtype=torch.float8_e4m3fn))
    elif form == "int8":
        room = m * lane_room(k)
        tensors = (new(room * BLOCK, dtype=torch.int8), new(room, 2, dtype=torch.float32))
    elif form == "f16":
        room = m * lane_room(k)
        tensors = (new(room * BLOCK, dtype=torch.float16), new(room, dtype=torch.float32))
    elif form in ("wgmma4", "wgmma8"):
        if m > int(form[-1]):
            raise UsageError(f"form {form} holds at most {form[-1]} tokens, not {m}")
        chunks = -(-k // 128)
        tensors = (new(chunks * (256 * m + 32 if form == "wgmma4" else 128 * m + 64), dtype=torch.uint8),)
    elif form == "q16":
        tensors = (new(m, k, dtype=x.dtype),)
    elif form in PANELS:
        dtype = torch.float16 if form == "panels" else x.dtype
        tensors = (new(-(-k // 128) * 128 * (-(-m // 8) * 8), dtype=dtype), new(FLAGS, dtype=torch.int32))
    else:
        dtype = torch.float16 if form == "fragments" else x.dtype
        # Kernels read tokens in up to 8 tiles and so up to 7 tiles beyond the last.
        beyond = 7 * 8 * (128 if k % 32 == 0 else 64)
        tensors = (new(_rows(form, m) * padded_k(k) + beyond, dtype=dtype),)
    return Activations(form, m, k, x.dtype, tensors), (*tensors, None)[:2]


def _rows(form: str, m: int) -> int:
    """Rows that kernels go through."""
    return -(-m // 8) * 8 if form in ("fragments", "fragments16") or (form in PANELS and m >= 8) else m


def _blocks(form: str, m: int, k: int) -> tuple[int, int]:
    """(grid, block) of one thread a block of 16."""
    width = padded_k(k) if form in ("fragments", "fragments16") else k
    if form in ("wgmma4", "wgmma8", *PANELS):
        width = -(-k // 128) * 128
    total = _rows(form, m) * (width // BLOCK)
    if total >= 1 << 32:
        raise UsageError(f"x is [{m}, {k}]: too large for 32-bit indices; quantize fewer rows at a time")
    threads = 64 if total < 1 << 15 else 256  # few: spread over many multiprocessors
    return -(-total // threads), threads


def _launch(form: str, name: str, shape: tuple[int, int], args: tuple, device: torch.device, pdl: bool) -> None:
    from resetcli.cuda.launch import launch, load

    launch(load(_build(form), device).function(name), shape[0], shape[1], args, pdl=pdl)


def _scale(input_scale: float | None, form: str) -> float:
    if form not in FORMS:
        raise unknown_name("form of activations", form, FORMS)
    if form in UNQUANTIZED:
        return 1.0
    if input_scale is None:
        raise UsageError("this checkpoint quantizes weights only; its activations have no scale (use w4a16)")
    scale = float(input_scale)
    if not (scale > 0 and math.isfinite(scale)):
        raise ResetError(f"NVFP4 input scale is {scale}; it must be positive and finite")
    return scale


def _check(x: torch.Tensor, what: str) -> None:
    if x.dtype not in _SUFFIX:
        raise UsageError(f"{what} is {x.dtype}; the kernels take bfloat16 and float16")
    if x.dim() != 2 or x.shape[1] % BLOCK or not x.shape[1]:
        raise UsageError(f"{what} is {list(x.shape)}; the kernels take [M, K] with K divisible by {BLOCK}")
    if not x.is_cuda:
        raise UsageError(f"{what} is on {x.device}; the kernels need a GPU")


def _matrix(x: torch.Tensor, what: str) -> torch.Tensor:
    _check(x, what)
    return x.contiguous()


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """``x``, or a copy of it where 16-byte loads would be misaligned."""
    return x if x.data_ptr() % 16 == 0 else x.clone(memory_format=torch.contiguous_format)
