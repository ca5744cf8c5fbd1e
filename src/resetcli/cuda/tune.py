"""Measuring which kernel is fastest for each shape, into the user's table (``reset bench-kernels --tune``).

Every configuration of every family is timed as it will be used: BF16 or FP16 X in, Y out, quantization of X included,
by graph replay over rotated copies of the weight so that none is in cache. A configuration whose result is off is left
out and reported: a fast wrong kernel must never enter a table. A first short round sorts out, with the next launch let
go early and late, and times the product without quantization and overlap as well, which is kept for the bench only. A
second round times each family's few best, its very best without programmatic dependent launch too, together with BF16
and interleaved, and then the few that were best alone, so that the figures that decide were taken side by side. Given a
number of seconds, the first round takes configurations in the cost model's order and stops when a family's share of the
time is gone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from resetcli.base.errors import ResetError
from resetcli.base.reporting import Reporter
from resetcli.base.versions import versions
from resetcli.cuda.activations import Activations, quantize
from resetcli.cuda.availability import kernels_available
from resetcli.cuda.build import architecture_number
from resetcli.cuda.dispatch import Plan, Target, dispatcher, dtype_name, supported, target
from resetcli.cuda.driver import KernelsUnavailable, driver_version
from resetcli.cuda.families import families
from resetcli.cuda.families.base import EARLY, LATE, Family
from resetcli.cuda.kernel_table import Entry, KernelTable, Key, Timed, bucket, save_table, user_path
from resetcli.cuda.launch import device_index
from resetcli.cuda.nvrtc import compiler
from resetcli.cuda.ops import execute
from resetcli.cuda.shapes import BLOCK, Shape
from resetcli.cuda.timing import Candidate, Thunk, last_level_cache, reason, time_cuda, time_quick
from resetcli.nvfp4 import codec

COLD = 4.0
"""Bytes between two uses of a weight, in last-level caches."""
OFF = 1e-2
"""Error ||Y - R|| / ||R|| above which a configuration is wrong (16-bit results are within 4e-3)."""
KEPT = 6
"""Configurations of a family that the second round times."""
LEAST = 6
"""Configurations of a family that the first round takes at least, whatever the time."""
HOPELESS = 3.0
"""A family whose best is so many times slower than the best of all is not timed again."""
THOROUGH = ("gemv", "mma", "wgmma4", "wgmma8", "wide")
"""Families all of whose configurations are tried by default; of others the cost model's choice alone."""


def tune(
    shapes: Sequence[Shape],
    ms: Iterable[int],
    *,
    device: torch.device | int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    activations: Sequence[str] = ("w4a4",),
    memory: float = 16e9,
    seed: int = 0,
    save: bool = True,
    seconds: float | None = None,
    thorough: Sequence[str] | None = THOROUGH,
    on_shape: Callable[[KernelTable], None] | None = None,
    reporter: Reporter | None = None,
) -> KernelTable:
    """Time all configurations for each of ``shapes`` and ``ms`` (rounded up to buckets), and BF16 beside them.

    Args:
        memory: bytes that copies of one shape's weights may take.
        save: add each shape's results to the user's table as soon as it is done.
        seconds: about how long all may take once kernels are compiled; None for as long as it takes. Each product gets
            an equal share of what is left.
        thorough: families all of whose configurations are tried (None: every family); others run their first.
        on_shape: called after each shape with the table so far.

    Returns:
        The table of this run alone.

    Raises:
        KernelsUnavailable: no kernels here.
        ResetError: the table cannot be written, or no configuration of any shape is right (of some: a warning).
    """
    reporter = reporter or Reporter()
    there, why = kernels_available(device)
    if not there:
        raise KernelsUnavailable(f"nothing to tune: {why}")
    index = device_index(device)
    where = target(index)
    table = KernelTable(where.name, about=_about(where))
    many = sorted({bucket(m) for m in ms})
    left = len(shapes) * len(many) * len(activations)
    fault: ResetError | None = None
    begun = time.perf_counter()
    with (
        torch.cuda.device(index),
        torch.inference_mode(),
        reporter.phase("tune", left) as advance,
    ):
        for number, shape in enumerate(shapes):
            operands = _Operands(shape, index, dtype, memory, seed + number)
            for mode in activations:
                for m in many:
                    share = None if seconds is None else (begun + seconds - time.perf_counter()) / left
                    entry = None
                    try:
                        entry = _tune_one(operands, where, m, dtype, mode, share, thorough, reporter)
                    except ResetError as exc:
                        fault = exc
                        reporter.warn(str(exc))
                    left -= 1
                    if entry is not None:
                        table.entries[Key(m, shape.n, shape.k, dtype_name(dtype), mode)] = entry
                    advance(1)
            if save:
                save_table(table, user_path(where.name))
            if on_shape is not None:
                on_shape(table)
            # Each graph had memory of its own, which goes back only when it is asked for.
            del operands
            torch.cuda.empty_cache()
            reporter.info(f"tuned {shape} after {time.perf_counter() - begun:.1f} s")
    if save:
        dispatcher.forget()
    if fault is not None and not table.entries:
        raise fault
    return table


def _about(where: Target) -> dict[str, Any]:
    driver = driver_version()
    return {
        "arch": where.arch,
        "multiprocessors": where.multiprocessors,
        "driver": driver and ".".join(map(str, driver)),
        "nvrtc": ".".join(map(str, compiler().version)),
        "versions": versions(),
    }


_Found = tuple[float, Plan]


def _seconds(found: _Found) -> float:
    return found[0]


class _Operands:
    """Copies of one shape's weight for every layout, and of a BF16 weight of that shape, on the GPU."""

    def __init__(self, shape: Shape, device: int, dtype: torch.dtype, memory: float, seed: int):
        self.n, self.k, self.dtype = shape.n, shape.k, dtype
        self.draw = torch.Generator(device=f"cuda:{device}").manual_seed(seed)
        self.weight_scale_2 = 0.01
        cold = COLD * last_level_cache(torch.device("cuda", device))
        size = shape.elements * 9 / 16
        count = int(max(1, min(-(-cold // size), memory / 4 // size)))
        self.weights = [self._weight() for _ in range(count)]
        plain = int(max(1, min(-(-cold // (2 * shape.elements)), memory / 2 // (2 * shape.elements))))
        self.plain = [
            torch.randn(self.n, self.k, generator=self.draw, device=self.draw.device, dtype=dtype) for _ in range(plain)
        ]
        self._layouts: dict[str, list[tuple[torch.Tensor, ...]]] = {}

    def _weight(self) -> tuple[torch.Tensor, torch.Tensor]:
        device = self.draw.device
        codes = torch.randint(0, 256, (self.n, self.k // 2), dtype=torch.uint8, generator=self.draw, device=device)
        spread = torch.rand(self.n, self.k // BLOCK, generator=self.draw, device=device) * 10 - 5
        return codes, torch.exp2(spread).to(torch.float8_e4m3fn)

    def prepared(self, family: Family) -> list[tuple[torch.Tensor, ...]]:
        """Each copy in the family's layout."""
        if family.layout not in self._layouts:
            self._layouts[family.layout] = [family.prepare(*weight) for weight in self.weights]
        return self._layouts[family.layout]

    def rows(self, m: int) -> tuple[torch.Tensor, float]:
        """X [m, K] and its input scale."""
        x = torch.randn(m, self.k, generator=self.draw, device=self.draw.device, dtype=self.dtype)
        return x, float(x.abs().amax().float() / (codec.E2M1_MAX * codec.E4M3_MAX))

    def answer(self, x: torch.Tensor, input_scale: float, activations: str) -> torch.Tensor:
        """Y float32 [M, N] of the first copy, in plain torch and float32."""
        x = x.float()
        if activations == "w4a4":
            x = codec.fake_quantize_activation(x, torch.tensor(input_scale, device=x.device))
        codes, scales = self.weights[0]
        global_scale = torch.tensor(self.weight_scale_2, device=x.device)
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            rows = max(BLOCK, (1 << 28) // self.k)
            parts = [
                F.linear(x, codec.dequantize(codes[at : at + rows], scales[at : at + rows], global_scale))
                for at in range(0, self.n, rows)
            ]
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
        return torch.cat(parts, -1)


class _Product:
    """One product to tune: its operands, X quantized and not, and the answer."""

    def __init__(
        self,
        operands: _Operands,
        m: int,
        dtype: torch.dtype,
        activations: str,
        multiprocessors: int,
        reporter: Reporter,
    ):
        self.operands, self.m, self.activations, self.reporter = operands, m, activations, reporter
        self.multiprocessors = multiprocessors
        self.x, self.input_scale = operands.rows(m)
        self.answer = operands.answer(self.x, self.input_scale, activations)
        self.out = torch.empty(m, operands.n, dtype=dtype, device=self.x.device)
        self.side = torch.cuda.Stream()
        self._quantized: dict[str, Activations] = {}

    def whole(self, plan: Plan) -> list[Thunk]:
        """A call a copy of the weight, from 16-bit X to Y."""
        return [
            partial(execute, plan, self.x, prepared, self.out, k=self.operands.k,
                    weight_scale_2=self.operands.weight_scale_2, input_scale=self.input_scale)
            for prepared in self.operands.prepared(plan.family)
        ]  # fmt: skip

    def alone(self, plan: Plan) -> list[Thunk]:
        """The same of the product alone, on X quantized here, without overlap."""
        if plan.form not in self._quantized:
            self._quantized[plan.form] = quantize(self.x, self.input_scale, plan.form)
        acts, n, k = self._quantized[plan.form], self.operands.n, self.operands.k
        return [
            partial(plan.family.run, plan.config, acts, prepared, self.out, 1.0, n=n, k=k)
            for prepared in self.operands.prepared(plan.family)
        ]

    def first_round(
        self, family: Family, configs: Sequence[dict[str, Any]], modes: Sequence[int], until: float | None
    ) -> tuple[list[_Found], list[_Found]]:
        """Seconds and plans, fastest first: whole, in each of ``modes`` of overlap (of steady configurations, if there
        are any), and alone.

        After ``until`` (a time of ``time.perf_counter``) no more than LEAST configurations are tried, in order; alone
        those are tried first that were fastest as a whole.
        """
        whole: list[_Found] = []
        doubtful: list[_Found] = []
        right: list[_Found] = []
        for tried, config in enumerate(configs):
            if until is not None and tried >= LEAST and time.perf_counter() > until:
                break
            plan = Plan(family, config, modes[0], family.form_for(self.activations), "tuning")
            try:
                fault = _fault(plan, self.operands, self.x, self.out, self.answer, self.input_scale)
                if fault is None:
                    plans = [replace(plan, pdl=pdl) for pdl in modes]
                    found = [(time_quick(self.whole(each), side=self.side), each) for each in plans]
                    right.append((min(found, key=_seconds)[0], plan))
                    n, k = self.operands.n, self.operands.k
                    (whole if family.steady(config, self.m, n, k, self.multiprocessors) else doubtful).extend(found)
            except (ResetError, RuntimeError) as exc:
                fault = reason(exc)  # after a lasting error of CUDA the others fail as well
            if fault is not None:
                self._warn(f"{family.name} {config}", f"is left out: {fault}")
        # Afterwards, one after the other: what ran before a graph costs or spares it some per cent.
        alone: list[_Found] = []
        for _, plan in sorted(right, key=_seconds):
            if until is not None and len(alone) >= LEAST and time.perf_counter() > until:
                break
            try:
                alone.append((time_quick(self.alone(plan), side=self.side), plan))
            except (ResetError, RuntimeError) as exc:
                self._warn(f"{family.name} {plan.config}", f"alone cannot be timed: {reason(exc)}")
        return sorted(whole or doubtful, key=_seconds), sorted(alone, key=_seconds)

    def second_round(self, candidates: Sequence[Candidate], seconds: float) -> None:
        """Time them, interleaved; one that cannot be timed gets no times and a warning."""
        failed: dict[str, str] = {}
        time_cuda(candidates, seconds=seconds, least=8, most=40, failed=failed)
        for name, why in failed.items():
            self._warn(name, f"cannot be timed: {why}")

    def _warn(self, what: str, why: str) -> None:
        shape = f"{self.operands.n}x{self.operands.k} M={self.m} {self.activations}"
        self.reporter.warn(f"{what} on {shape} {why}")


def _tune_one(
    operands: _Operands, where: Target, m: int, dtype: torch.dtype, activations: str, seconds: float | None,
    thorough: Sequence[str] | None, reporter: Reporter,
) -> Entry | None:  # fmt: skip
    """The entry of one shape and M; None where no family supports it (told to ``reporter``)."""
    n, k = operands.n, operands.k
    there, why = supported(where.arch, m, n, k, dtype, activations)
    if not there:
        reporter.info(f"{n}x{k} M={m} {activations} is left out: {why}")
        return None
    begun = time.perf_counter()
    product = _Product(operands, m, dtype, activations, where.multiprocessors, reporter)
    overlap = EARLY if architecture_number(where.arch) >= 90 else 0  # older ones know no programmatic dependent launch
    able = [each for each in families() if each.supports(where.arch, m, n, k, dtype, activations)[0]]
    rounds: dict[str, tuple[list[_Found], list[_Found]]] = {}
    for place, family in enumerate(able):
        # Half of the time for the first round; the rest goes into preparation and the second.
        until = None if seconds is None else begun + seconds * (0.25 + 0.5 * (place + 1) / len(able))
        configs = family.configs(m, n, k, where.multiprocessors, activations)
        if thorough is not None and family.name not in thorough:
            configs = configs[:1]
        modes = (EARLY, LATE) if overlap and family.late else (overlap,)
        whole, alone = product.first_round(family, configs, modes, until)
        if whole:
            rounds[family.name] = whole, alone
    if not rounds:
        raise ResetError(f"no kernel is right on {n}x{k} at M={m} with {activations}; see the warnings")
    first = min(whole[0][0] for whole, _ in rounds.values())
    finalists: list[tuple[Plan, Candidate]] = []
    quiet: list[tuple[Plan, Candidate]] = []
    results: list[tuple[Plan, float]] = []
    alone_results: list[tuple[Plan, float]] = []
    for name, (whole, alone) in rounds.items():
        if whole[0][0] > HOPELESS * first:
            results.append((whole[0][1], whole[0][0] * 1e6))
            alone_results += [(plan, found * 1e6) for found, plan in alone[:1]]
            continue
        plans = [plan for _, plan in whole[:KEPT]]
        if overlap:
            plans.append(replace(plans[0], pdl=0))
        finalists += [(plan, Candidate(name, product.whole(plan), 0, [])) for plan in plans]
        quiet += [(plan, Candidate(name, product.alone(plan), 0, [])) for _, plan in alone[:KEPT]]
    # Into the same output as well: a graph of large outputs of their own would not fit.
    calls = [partial(torch.mm, product.x, weight.t(), out=product.out) for weight in operands.plain]
    plain = Candidate("bf16", calls, 0, [])
    budget = 0.2 if seconds is None else min(0.2, max(0.0, begun + seconds - time.perf_counter()))
    product.second_round([*(timed for _, timed in finalists), plain], budget)
    product.second_round([timed for _, timed in quiet], budget)
    results += [(plan, statistics.median(timed.seconds) * 1e6) for plan, timed in finalists if timed.seconds]
    alone_results += [(plan, statistics.median(timed.seconds) * 1e6) for plan, timed in quiet if timed.seconds]
    best_alone = {timed.family: timed for timed in best_of(alone_results)}
    choices = []
    for choice in best_of(results):
        if (quietly := best_alone.get(choice.family)) is not None:
            choice = replace(choice, alone=quietly.config, alone_us=quietly.us)
        choices.append(choice)
    return Entry(choices, statistics.median(plain.seconds) * 1e6 if plain.seconds else None)


def best_of(results: Iterable[tuple[Plan, float]]) -> list[Timed]:
    """The fastest plan of each family with its microseconds, fastest first."""
    best: dict[str, Timed] = {}
    for plan, us in results:
        name = plan.family.name
        if name not in best or us < best[name].us:
            best[name] = Timed(name, plan.config, plan.pdl, round(us, 3))
    return sorted(best.values(), key=lambda timed: timed.us)


def _fault(
    plan: Plan, operands: _Operands, x: torch.Tensor, out: torch.Tensor, answer: torch.Tensor, input_scale: float
) -> str | None:
    """What is wrong with the plan's result, None if nothing is."""
    out.fill_(float("nan"))
    try:
        prepared = operands.prepared(plan.family)[0]
        execute(plan, x, prepared, out, k=operands.k, weight_scale_2=operands.weight_scale_2, input_scale=input_scale)
    except ResetError as exc:
        return str(exc)
    error = float((out.float() - answer).norm() / answer.norm())
    return None if error <= OFF else f"its result is off by {error:.3g}"
