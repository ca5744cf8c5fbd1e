"""Other projects' small-M products as backends, where they are installed; else listed as left out, with the reason.

Each has weights of its own format, of the problem's random bytes where that is possible, and is checked against float64
of those same weights. Their bytes a weight differ, so compare times, not shares of bandwidth.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import torch

from resetcli.cuda.backends import Backend, Call, Operand, register
from resetcli.cuda.problem import Problem

_ROWS = 1 << 22
_BLACKWELL = (10, 0)


def _product(x: torch.Tensor, n: int, weight: Callable[[slice], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """X W^T and |X| |W|^T in float64, ``weight`` giving some rows of W at a time."""
    wide = x.double()
    parts = []
    rows = max(1, _ROWS // x.shape[1])
    for start in range(0, n, rows):
        w = weight(slice(start, min(n, start + rows))).double()
        parts.append((wide @ w.T, wide.abs() @ w.abs().T))
    return torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts], 1)


class Peer(Backend):
    """What peers share: BF16 X, a GPU, and perhaps a module to import and a least compute capability."""

    on = ("cuda",)
    module = "torch"
    capability = (8, 0)

    def supports(self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> tuple[bool, str]:
        if device.type != "cuda":
            return False, "it needs a GPU"
        if importlib.util.find_spec(self.module) is None:
            return False, f"{self.module} is not installed"
        if torch.cuda.get_device_capability(device) < self.capability:
            return False, f"it needs compute capability {self.capability[0]}.{self.capability[1]}"
        if dtype != torch.bfloat16:
            return False, "it is timed in bfloat16 only"
        return self.fits(m, n, k)

    def fits(self, m: int, n: int, k: int) -> tuple[bool, str]:
        """As ``supports``, of the sizes alone."""
        return True, ""

    def input_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.bfloat16

    def tolerance(self, dtype: torch.dtype) -> float:
        return 2.0**-8  # weights are rounded to bfloat16 on the way


class TorchInt4(Peer):
    """torch's own 4-bit weights with a scale and a zero for each group: (q - 8) * scale + zero, the zeros being 0."""

    def __init__(self, group: int):
        self.group = group
        self.name = self.operand = f"torch-int4-g{group}"
        self.about = f"torch's tinygemm (_weight_int4pack_mm), groups of {group}"

    def fits(self, m: int, n: int, k: int) -> tuple[bool, str]:
        if n % 8 or k % 128:
            return False, f"N={n}, K={k}: it takes N divisible by 8 and K by 128"
        return True, ""

    def load(self, problem: Problem, device: torch.device, dtype: torch.dtype, operand: str | None = None) -> Operand:
        n, k = problem.shape.n, problem.shape.k
        codes = problem.packed.to(device)
        draw = torch.Generator(device).manual_seed(n + k)
        scale = (torch.rand(k // self.group, n, generator=draw, device=device) + 0.5).bfloat16()
        packed = torch._convert_weight_to_int4pack(codes, 8)
        both = torch.stack([scale, torch.zeros_like(scale)], -1).contiguous()
        size = packed.numel() * packed.element_size() + both.numel() * both.element_size()
        return Operand((packed, both, codes), size)

    def duplicate(self, operand: Operand) -> Operand:
        packed, both, codes = operand.value
        return Operand((packed.clone(), both.clone(), codes), operand.weight_bytes)

    def call(self, operand: Operand) -> Call:
        packed, both, _ = operand.value
        return lambda x: torch._weight_int4pack_mm(x, packed, self.group, both)

    def truth(self, operand: Operand, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _, both, codes = operand.value

        def weight(rows: slice) -> torch.Tensor:
            pairs = torch.stack([codes[rows] >> 4, codes[rows] & 15], -1).flatten(1).double() - 8
            return pairs * both[:, rows, 0].T.double().repeat_interleave(self.group, 1)

        return _product(x, codes.shape[0], weight)


class BitsAndBytes(Peer):
    """bitsandbytes' fp4 in blocks of 64."""

    name = operand = "bitsandbytes-fp4"
    module = "bitsandbytes"
    about = "bitsandbytes.matmul_4bit, fp4, blocks of 64"

    def load(self, problem: Problem, device: torch.device, dtype: torch.dtype, operand: str | None = None) -> Operand:
        from bitsandbytes import functional

        draw = torch.Generator(device).manual_seed(problem.shape.n + problem.shape.k)
        weight = torch.randn(problem.shape.n, problem.shape.k, generator=draw, device=device).bfloat16()
        codes, state = functional.quantize_4bit(weight, blocksize=64, quant_type="fp4")
        size = codes.numel() * codes.element_size() + state.absmax.numel() * state.absmax.element_size()
        return Operand((codes, state), size)

    def call(self, operand: Operand) -> Call:
        import bitsandbytes

        codes, state = operand.value
        return lambda x: bitsandbytes.matmul_4bit(x, codes.t(), quant_state=state)

    def truth(self, operand: Operand, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from bitsandbytes import functional

        wide = functional.dequantize_4bit(*operand.value)
        return _product(x, wide.shape[0], lambda rows: wide[rows])


class Marlin(Peer):
    """vLLM's Marlin on the problem's own NVFP4 weights; X stays in 16 bit."""

    name = operand = "marlin-nvfp4"
    module = "vllm"
    about = "vLLM's Marlin (W4A16) on NVFP4 weights"

    def fits(self, m: int, n: int, k: int) -> tuple[bool, str]:
        if n % 64 or k % 128:
            return False, f"N={n}, K={k}: it takes multiples of 64 and 128"
        return True, ""

    def load(self, problem: Problem, device: torch.device, dtype: torch.dtype, operand: str | None = None) -> Operand:
        from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import prepare_fp4_layer_for_marlin

        layer: Any = torch.nn.Module()
        tensors = {"weight": problem.packed.to(device), "weight_scale": problem.scales.to(device)}
        factor = torch.tensor(problem.global_scale, dtype=torch.float32, device=device)
        # The name of the global factor depends on vLLM's version.
        for name, tensor in {**tensors, "weight_scale_2": factor, "weight_global_scale": factor.clone()}.items():
            setattr(layer, name, torch.nn.Parameter(tensor, requires_grad=False))
        sizes: dict[str, Any] = {
            "output_size_per_partition": problem.shape.n, "input_size_per_partition": problem.shape.k,
            "params_dtype": dtype, "orig_dtype": dtype,
        }  # fmt: skip
        for name, value in sizes.items():
            setattr(layer, name, value)
        prepare_fp4_layer_for_marlin(layer)
        size = sum(t.numel() * t.element_size() for t in (layer.weight, layer.weight_scale))
        return Operand(layer, size)

    def call(self, operand: Operand) -> Call:
        from vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 import apply_fp4_marlin_linear

        layer = operand.value
        known = inspect.signature(apply_fp4_marlin_linear).parameters
        factor = "weight_global_scale" if "weight_global_scale" in known else "weight_scale_2"
        return lambda x: apply_fp4_marlin_linear(
            input=x, weight=layer.weight, weight_scale=layer.weight_scale, workspace=layer.workspace,
            size_n=layer.output_size_per_partition, size_k=layer.input_size_per_partition, bias=None,
            **{factor: getattr(layer, factor)},
        )  # fmt: skip


class Cutlass(Peer):
    """vLLM's CUTLASS NVFP4 product; X is quantized on the way."""

    name = operand = "vllm-cutlass-nvfp4"
    module, capability, quantizes = "vllm", _BLACKWELL, True
    about = "vLLM's scaled_fp4_quant and cutlass_scaled_fp4_mm"

    def load(self, problem: Problem, device: torch.device, dtype: torch.dtype, operand: str | None = None) -> Operand:
        from vllm.model_executor.layers.quantization.utils.quant_utils import swizzle_blockscale

        weight, scale = problem.packed.to(device), swizzle_blockscale(problem.scales.to(device))
        inverse = torch.tensor(1 / problem.input_scale, dtype=torch.float32, device=device)
        alpha = torch.tensor(problem.input_scale * problem.global_scale, dtype=torch.float32, device=device)
        return Operand((weight, scale, inverse, alpha), weight.numel() + scale.numel())

    def call(self, operand: Operand) -> Call:
        from vllm._custom_ops import cutlass_scaled_fp4_mm, scaled_fp4_quant

        weight, scale, inverse, alpha = operand.value

        def run(x: torch.Tensor) -> torch.Tensor:
            codes, scales = scaled_fp4_quant(x, inverse)
            return cutlass_scaled_fp4_mm(codes, weight, scales, scale, alpha, x.dtype)

        return run


class FlashInfer(Cutlass):
    """FlashInfer's NVFP4 product; X is quantized on the way."""

    name = operand = "flashinfer-nvfp4"
    module = "flashinfer"
    about = "FlashInfer's fp4_quantize and mm_fp4"

    def load(self, problem: Problem, device: torch.device, dtype: torch.dtype, operand: str | None = None) -> Operand:
        import flashinfer

        n, k = problem.shape.n, problem.shape.k
        weight = problem.packed.to(device)
        scale = flashinfer.block_scale_interleave(problem.scales.to(device).view(torch.uint8)).view(n, k // 16)
        inverse = torch.tensor(1 / problem.input_scale, dtype=torch.float32, device=device)
        alpha = torch.tensor(problem.input_scale * problem.global_scale, dtype=torch.float32, device=device)
        return Operand((weight, scale, inverse, alpha), weight.numel() + scale.numel())

    def call(self, operand: Operand) -> Call:
        import flashinfer

        weight, scale, inverse, alpha = operand.value

        def run(x: torch.Tensor) -> torch.Tensor:
            codes, scales = flashinfer.fp4_quantize(x, inverse)
            return flashinfer.mm_fp4(codes, weight.t(), scales, scale.t(), alpha, x.dtype)

        return run


PEERS: tuple[Peer, ...] = (TorchInt4(32), TorchInt4(128), BitsAndBytes(), Marlin(), Cutlass(), FlashInfer())


def register_all() -> None:
    """Add them to the registry of backends."""
    for peer in PEERS:
        register(peer)
