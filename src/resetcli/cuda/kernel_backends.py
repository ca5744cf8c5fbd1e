"""The kernels as backends of the bench: one for each family, and what dispatch picks: "kernels", "kernels-w4a16".

A backend runs a product as a layer does: 16-bit X in, quantization included, programmatic dependent launch as its
table says. It also offers the product alone: on activations quantized before, without overlap, in the configuration
that tuning found best for that. A family's configuration is the table's, else the cost model's first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch

from resetcli.base.errors import ResetError
from resetcli.cuda import activations as acts
from resetcli.cuda.availability import kernels_available
from resetcli.cuda.backends import Backend, Call, Operand, register
from resetcli.cuda.build import architecture_number
from resetcli.cuda.dispatch import Plan, Target, dispatcher, target
from resetcli.cuda.families import families, family
from resetcli.cuda.families.base import DTYPES, EARLY, Family
from resetcli.cuda.launch import device_index
from resetcli.cuda.ops import execute
from resetcli.cuda.problem import Problem


@dataclass(frozen=True)
class Weights:
    """One copy of a weight in a layout, with its factors."""

    n: int
    k: int
    prepared: tuple[torch.Tensor, ...]
    weight_scale_2: float
    input_scale: float


@lru_cache(maxsize=4096)
def family_plan(family: Family, where: Target, m: int, n: int, k: int, dtype: torch.dtype, mode: str = "w4a4") -> Plan:
    """How ``family`` computes a product: by the tables where they know it, else by its cost model."""
    configs = family.configs(m, n, k, where.multiprocessors, mode)
    form, overlap = family.form_for(mode), EARLY if architecture_number(where.arch) >= 90 else 0
    timed = dispatcher.measured(where, family, m, n, k, dtype, mode)
    if timed is not None and timed.config in configs and family.steady(timed.config, m, n, k, where.multiprocessors):
        return Plan(family, timed.config, timed.pdl, form, "table", timed.us)
    return Plan(family, configs[0], overlap, form, "cost model")


def alone_plan(plan: Plan, where: Target, m: int, n: int, k: int, dtype: torch.dtype, mode: str = "w4a4") -> Plan:
    """The same family in the configuration that is fastest without quantization and overlap."""
    timed = dispatcher.measured(where, plan.family, m, n, k, dtype, mode)
    config = plan.config
    if timed is not None and timed.alone in plan.family.configs(m, n, k, where.multiprocessors, mode):
        config = timed.alone or config
    return replace(plan, config=config, pdl=0)


class KernelBackend(Backend):
    """What the members share; ``plan`` says how a product is computed, ``mode`` what of X ("w4a4", "w4a16")."""

    quantizes, on = True, ("cuda",)
    rounding = 0.5
    mode = "w4a4"

    def plan(self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> Plan:
        raise ResetError(f"{self.name} has no plan")

    def supports(self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> tuple[bool, str]:
        if device.type != "cuda":
            return False, "the kernels need a GPU"
        there, why = kernels_available(device)
        if not there:
            return False, why
        if dtype not in DTYPES:
            return False, f"{dtype} is neither bfloat16 nor float16"
        try:
            self.plan(device, m, n, k, dtype)
        except ResetError as exc:
            return False, str(exc)
        return True, ""

    def input_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def operand_at(self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> str:
        return self.plan(device, m, n, k, dtype).family.layout

    def load(self, problem: Problem, device: torch.device, dtype: torch.dtype, operand: str | None = None) -> Operand:
        maker = next(family for family in families() if family.layout == (operand or self.operand))
        packed, scales = problem.packed.to(device), problem.scales.to(device)
        prepared = tuple(part.clone() for part in maker.prepare(packed, scales))
        n, k = problem.shape.n, problem.shape.k
        value = Weights(n, k, prepared, problem.global_scale, problem.input_scale)
        return Operand(value, sum(part.numel() * part.element_size() for part in prepared))

    def duplicate(self, operand: Operand) -> Operand:
        value = replace(operand.value, prepared=tuple(part.clone() for part in operand.value.prepared))
        return Operand(value, operand.weight_bytes)

    def call(self, operand: Operand) -> Call:
        weights: Weights = operand.value

        def run(x: torch.Tensor) -> torch.Tensor:
            plan = self.plan(x.device, x.shape[0], weights.n, weights.k, x.dtype)
            out = torch.empty(x.shape[0], weights.n, dtype=x.dtype, device=x.device)
            execute(plan, x, weights.prepared, out, k=weights.k, weight_scale_2=weights.weight_scale_2,
                    input_scale=weights.input_scale)  # fmt: skip
            return out

        return run

    def family_alone(
        self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype, layouts: Collection[str]
    ) -> Family:
        """The family whose product alone is timed, one that reads a layout of ``layouts``."""
        return self.plan(device, m, n, k, dtype).family

    def alone(
        self, operands: Mapping[str, list[Operand]], n: int, k: int, x: torch.Tensor
    ) -> tuple[dict[str, Any], list[Callable[[], Any]]]:
        """(family and configuration, a call a copy) of the product alone on X quantized here; operands by layout."""
        m, where = x.shape[0], target(device_index(x.device))
        chosen = self.family_alone(x.device, m, n, k, x.dtype, operands)
        first: Weights = operands[chosen.layout][0].value
        plan = family_plan(chosen, where, m, n, k, x.dtype, self.mode)
        plan = alone_plan(plan, where, m, n, k, x.dtype, self.mode)
        quantized = acts.quantize(x, first.input_scale, plan.form)
        alpha = first.weight_scale_2 * (first.input_scale if self.quantizes else 1.0)
        out = torch.empty(m, n, dtype=x.dtype, device=x.device)
        return {"family": plan.family.name, **plan.config}, [
            partial(plan.family.run, plan.config, quantized, operand.value.prepared, out, alpha, n=n, k=k, pdl=0)
            for operand in operands[chosen.layout]
        ]

    def describe(self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> dict[str, Any]:
        """What a row says of how it was computed."""
        plan = self.plan(device, m, n, k, dtype)
        return {
            "family": plan.family.name, "config": plan.config, "pdl": plan.pdl, "source": plan.source,
            "activations": self.mode,
        }  # fmt: skip

    def tolerance_at(self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> float:
        return self.plan(device, m, n, k, dtype).family.error(m)


class FamilyBackend(KernelBackend):
    """One family."""

    def __init__(self, family: Family):
        self.family = family
        self.name, self.operand = family.name, family.layout
        self.about = f"{family.name} kernels, weights in layout {family.layout}, quantization of X included"

    def plan(self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> Plan:
        where = target(device_index(device))
        able, why = self.family.supports(where.arch, m, n, k, dtype, self.mode)
        if not able:
            raise ResetError(why)
        return family_plan(self.family, where, m, n, k, dtype, self.mode)


class Dispatched(KernelBackend):
    """What a layer would run."""

    name, operand = "kernels", "rows"
    about = "the family that dispatch picks, quantization of X included"

    def plan(self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype) -> Plan:
        return dispatcher.plan(target(device_index(device)), m, n, k, dtype, self.mode)

    def family_alone(
        self, device: torch.device, m: int, n: int, k: int, dtype: torch.dtype, layouts: Collection[str]
    ) -> Family:
        """The family that tuning found fastest without quantization and overlap, else the one that dispatch picks."""
        where = target(device_index(device))
        timed = [
            (found.alone_us, each.name)
            for each in families()
            if each.layout in layouts
            and (found := dispatcher.measured(where, each, m, n, k, dtype, self.mode)) is not None
            and found.alone_us is not None
        ]
        return family(min(timed)[1]) if timed else super().family_alone(device, m, n, k, dtype, layouts)


class DispatchedW4A16(Dispatched):
    """What a layer would run with ``activations="w4a16"``: the same weights, X as it is."""

    name, quantizes, mode = "kernels-w4a16", False, "w4a16"
    about = "the family that dispatch picks, X in 16 bit"


def register_all() -> None:
    """Add them to the registry of backends."""
    register(Dispatched())
    register(DispatchedW4A16())
    for each in families():
        register(FamilyBackend(each))
