"""Backends of the bench: each says what it supports, loads operands and yields a call to time.

A backend is asked before it is used (``supports``), so the bench can list what it left out and why, and tests can
skip with the same reason. Two backends may name the same ``operand``: it is then loaded once and both are timed on
it. The kernels (``kernel_backends``) and other projects' (``peers``) join by ``register``.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from resetcli.base.errors import unknown_name
from resetcli.cuda.problem import Problem, unpack
from resetcli.cuda.shapes import BLOCK

Call = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Operand:
    """Loaded weights. ``weight_bytes`` is what one product reads of them; ``value`` is the backend's own affair."""

    value: Any
    weight_bytes: int


class Backend(ABC):
    """One way to compute Y[M,N] = X[M,K] W[N,K]^T.

    ``operand`` names the form of W it reads; ``quantizes`` says whether X is quantized on the way (W4A4);
    ``plain`` whether the global scale of W is left out (16- and 32-bit baselines, see ``problem.Problem``);
    ``on`` the kinds of device where it runs unless others are named; ``rounding`` see ``problem.check``.
    """

    name: str
    about: str
    operand: str
    quantizes = False
    plain = False
    on: tuple[str, ...] = ("cpu", "cuda")
    rounding = 1.0

    @abstractmethod
    def supports(self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> tuple[bool, str]:
        """(True, "") or (False, why); ``dtype`` is the type of the layer's X and Y."""

    @abstractmethod
    def input_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Type of the X this backend is given when the bench runs with ``dtype``."""

    @abstractmethod
    def load(self, problem: Problem, device: torch.device, dtype: torch.dtype, operand: str | None = None) -> Operand:
        """A copy of the weights of its own on ``device``; ``operand`` where ``operand_at`` knows several."""

    def operand_at(self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> str:
        """The form of W it reads at that M."""
        return self.operand

    def truth(self, operand: Operand, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """(Y, sum of |x||w|) in float64 [M, N] where the operand has weights of its own; None: the problem's."""
        return None

    @abstractmethod
    def call(self, operand: Operand) -> Call:
        """The product as a function of X; capturable in a CUDA graph on a CUDA device."""

    def duplicate(self, operand: Operand) -> Operand:
        """Another copy in memory of its own, without the work of loading."""
        return Operand(copy.deepcopy(operand.value), operand.weight_bytes)

    def tolerance(self, dtype: torch.dtype) -> float:
        """Error allowed relative to sum |x||w|: float32 accumulation, plus operand rounding in 16 bit."""
        return 2.0**-14 if self.input_dtype(dtype) == torch.float32 else 2.0**-12

    def tolerance_at(self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> float:
        """``tolerance`` of a product."""
        return self.tolerance(dtype)


class _Layer(Backend):
    """Our ``NVFP4Linear``: dequantizes once, caches, and multiplies in torch (design 1.5 before the kernels)."""

    operand = "nvfp4"
    on = ("cpu",)  # elsewhere the kernels take its place
    activations: str

    def supports(self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> tuple[bool, str]:
        if k % BLOCK:
            return False, f"K={k} is not a multiple of {BLOCK}"
        return True, ""

    def input_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def load(self, problem: Problem, device: torch.device, dtype: torch.dtype, operand: str | None = None) -> Operand:
        from resetcli.nvfp4.linear import NVFP4Linear

        layer = NVFP4Linear(problem.shape.k, problem.shape.n, bias=False)
        layer.weight = problem.packed.clone()
        layer.weight_scale = problem.scales.clone()
        layer.weight_scale_2 = torch.tensor(problem.global_scale)
        layer.input_scale = torch.tensor(problem.input_scale)
        layer = layer.to(device)
        cached = layer.dequantized_weight(dtype)
        return Operand(layer, cached.numel() * cached.element_size())

    def call(self, operand: Operand) -> Call:
        layer, activations = operand.value, self.activations

        def run(x: torch.Tensor) -> torch.Tensor:
            layer.activations = activations
            return layer(x)

        return run

    def tolerance(self, dtype: torch.dtype) -> float:
        # In 16 bit the cached weight (and with W4A4 the quantized X) is rounded once more.
        return 2.0**-14 if dtype == torch.float32 else 2.0**-7


class LayerW4A4(_Layer):
    """The checkpoint's own rule."""

    name, activations, quantizes = "nvfp4-w4a4", "w4a4", True
    about = "NVFP4Linear, X quantized per token; W dequantized once and cached"


class LayerW4A16(_Layer):
    """Weights alone in 4 bit."""

    name, activations = "nvfp4-w4a16", "w4a16"
    about = "NVFP4Linear, X left as it is; W dequantized once and cached"


class _Torch(Backend):
    plain = True
    dtype: torch.dtype

    def supports(self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> tuple[bool, str]:
        return True, ""

    def input_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return self.dtype

    def load(self, problem: Problem, device: torch.device, dtype: torch.dtype, operand: str | None = None) -> Operand:
        weight = torch.empty(problem.shape.n, problem.shape.k, dtype=self.dtype, device=problem.packed.device)
        rows = max(1, (1 << 22) // problem.shape.k)
        for start in range(0, problem.shape.n, rows):
            part = slice(start, start + rows)
            weight[part] = unpack(problem.packed[part], problem.scales[part]).to(self.dtype)
        weight = weight.to(device)
        return Operand(weight, weight.numel() * weight.element_size())

    def call(self, operand: Operand) -> Call:
        return lambda x: F.linear(x, operand.value)


class TorchBF16(_Torch):
    """The baseline that speedups refer to."""

    name, operand, dtype = "torch-bf16", "bf16", torch.bfloat16
    about = "F.linear on BF16 weights"


class TorchFP32(_Torch):
    """What a CPU engine in float32 runs on the unquantized model."""

    name, operand, dtype = "torch-fp32", "fp32", torch.float32
    on = ("cpu",)
    about = "F.linear on float32 weights"


BASELINE = TorchBF16.name
_REGISTRY: dict[str, Backend] = {}


def register(backend: Backend) -> Backend:
    """Add a backend, or replace the one of the same name."""
    _REGISTRY[backend.name] = backend
    return backend


for _backend in (LayerW4A4(), TorchBF16(), LayerW4A16(), TorchFP32()):
    register(_backend)


def backends(names: Iterable[str] | None = None, kind: str | None = None) -> list[Backend]:
    """The named backends in registry order, or all that run on devices of ``kind`` ("cpu", "cuda"; None: any); the
    BF16 baseline is always among them.

    Raises:
        UsageError: an unknown name.
    """
    if names is None:
        return [backend for backend in _REGISTRY.values() if kind is None or kind in backend.on]
    wanted = {BASELINE}
    for name in names:
        if name not in _REGISTRY:
            raise unknown_name("backend", name, _REGISTRY)
        wanted.add(name)
    return [backend for name, backend in _REGISTRY.items() if name in wanted]
