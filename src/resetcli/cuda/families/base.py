"""What a kernel family is: Y[M,N] = alpha * sum over blocks of sx * sw * sum over 16 of x * w, in one or more kernels.

A family says what it supports and why not, lists its configurations with the cost model's favourite first, names all
that has to be compiled, and runs. Dispatch chooses among families by measured time; nothing here knows the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from resetcli.cuda.activations import Activations
    from resetcli.cuda.build import Build

SHORT_SUMS, LONG_SUMS = 2.0**-20, 2.0**-18
"""Errors of float32 sums, and of a long K added in the tensor cores, which cut off what lies below a sum's last bit, as
in a library's products."""
EARLY, LATE = 1, 2
"""How a kernel overlaps with its neighbours (programmatic dependent launch): it starts before the one ahead has ended,
and lets the next one do so at once, or when part of each CTA has read its weights. 0: it starts after the one ahead."""
DTYPES = (torch.bfloat16, torch.float16)
"""Types of X and Y that kernels read and write."""


class Family(ABC):
    """One kernel family.

    Attributes:
        name: as tables and the bench name it.
        layout: "rows", the checkpoint's own, or the name of another that ``prepare`` makes ("tiles").
        form: the form of the activations it reads with W4A4 (see ``activations.quantize``); with W4A16 a family
            reads "x16". ``form_for`` says which.
        late: whether ``run`` tells LATE from EARLY.
        costs: (M, time in readings of the weight) by kind of activations ("w4a16" as "w4a4" if absent): geometric means
            over eight shapes on an H200 (that of M = 1,024 by what the paper's took beyond 512), quantization and
            launches included, a weight being read at 4.5 TB/s. ``cost`` lays lines through them.
    """

    name: str
    layout: str = "rows"
    form: str
    late: bool = False
    costs: Mapping[str, Sequence[tuple[int, float]]]

    def error(self, m: int) -> float:
        """The largest lawful |y - answer| with M tokens, as a part of sum |x w|, beside one rounding to Y's type."""
        return SHORT_SUMS

    def cost(self, m: int, activations: str) -> float:
        """What a product takes in readings of the weight, roughly: what families are ranked by where nothing was
        measured."""
        points = self.costs.get(activations) or self.costs["w4a4"]
        after = next((i for i, (tokens, _) in enumerate(points) if tokens >= m), len(points) - 1)
        (m0, c0), (m1, c1) = points[max(0, after - 1)], points[max(1, after)]
        return c0 + (c1 - c0) * (m - m0) / (m1 - m0)

    def form_for(self, activations: str) -> str:
        """The form of the activations that ``run`` wants for "w4a4" or "w4a16"."""
        return "x16" if activations == "w4a16" else self.form

    @abstractmethod
    def supports(self, arch: str, m: int, n: int, k: int, dtype: torch.dtype, activations: str) -> tuple[bool, str]:
        """(True, "") or (False, why): whether Y[m,n] in ``dtype`` ("w4a4" or "w4a16") can be computed on ``arch``
        ("sm_90a", "compute_100")."""

    @abstractmethod
    def configs(self, m: int, n: int, k: int, multiprocessors: int, activations: str) -> list[dict[str, Any]]:
        """Configurations to choose from, JSON-able and all valid for this M; the first is the cost model's choice.

        A table holds configurations of M = 1 to 8, 16, 32, 64, 128 and powers of two; for an M in between, one of the
        next larger M is taken if it is in this list too, else the first of this list.
        """

    def steady(self, config: dict[str, Any], m: int, n: int, k: int, multiprocessors: int) -> bool:
        """Whether the time does not depend on what still runs when it starts. Others are not dispatched to; tuning lets
        them be the fastest of a product alone."""
        return True

    @abstractmethod
    def builds(self, arch: str) -> list[Build]:
        """All compilations that the configurations use on ``arch``; empty where the family is absent."""

    @abstractmethod
    def prepare(self, weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The family's layout of a weight: uint8 [N, K/2] and float8_e4m3fn [N, K/16] (design 1.2).

        The "rows" layout is the checkpoint's own and costs no memory.
        """

    @abstractmethod
    def run(
        self,
        config: dict[str, Any],
        acts: Activations,
        prepared: tuple[torch.Tensor, ...],
        out: torch.Tensor,
        alpha: float,
        *,
        n: int,
        k: int,
        pdl: int = 0,
    ) -> None:
        """Write all of ``out`` [M, N] from quantized (or 16-bit) activations and a prepared weight.

        Args:
            alpha: weight_scale_2 * input_scale (W4A4) or weight_scale_2 (W4A16).
            pdl: 0, EARLY or LATE: overlap with the stream's previous kernel and the next.
        """
