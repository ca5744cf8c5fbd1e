"""Which kernel computes a product: measured times where there are some, else a cost model that says so.

A plan is made once for a (device, M, N, K, type, activations, layouts) and kept, so a captured CUDA graph and a later
eager call agree, and nothing is measured or compiled in between. Order of trust: the user's table, the table that
ships for the device, each family's cost model. A table names a family and a configuration; both are checked against
the families of this version, so that a stale table costs speed at most.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from resetcli.base.errors import ResetError
from resetcli.cuda.build import architecture, architecture_number
from resetcli.cuda.families import families
from resetcli.cuda.families.base import DTYPES, EARLY, Family
from resetcli.cuda.kernel_table import (
    KernelTable,
    Key,
    Timed,
    load_table,
    merge,
    same_config,
    shipped_path,
    user_path,
)

BLOCK = 16


@dataclass(frozen=True)
class Target:
    """A device as dispatch sees it: name, architecture ("sm_90a"), number of multiprocessors."""

    name: str
    arch: str
    multiprocessors: int


@dataclass(frozen=True)
class Plan:
    """How one product is computed.

    ``pdl`` is 0, EARLY or LATE (families.base).
    ``us`` and ``bf16_us`` are measured microseconds, None where nothing was; ``source`` says whence the choice.
    """

    family: Family
    config: dict[str, Any]
    pdl: int
    form: str
    source: str
    us: float | None = None
    bf16_us: float | None = None

    @property
    def slower_than_bf16(self) -> bool:
        """Whether BF16 was measured faster on this shape."""
        return self.us is not None and self.bf16_us is not None and self.us > self.bf16_us


def dtype_name(dtype: torch.dtype) -> str:
    """ "bfloat16" for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def supported(arch: str, m: int, n: int, k: int, dtype: torch.dtype, activations: str) -> tuple[bool, str]:
    """(True, names of the families that can) or (False, why none can): Y[m,n] = X[m,k] W[n,k]^T on ``arch``.

    Args:
        arch: as ``build.architecture`` names it ("sm_90a", "compute_100").
        dtype: of X and Y.
        activations: "w4a4" or "w4a16".
    """
    if fault := _fault(m, n, k, dtype, activations):
        return False, fault
    answers = [(family.name, *family.supports(arch, m, n, k, dtype, activations)) for family in families()]
    able = [name for name, can, _ in answers if can]
    if able:
        return True, ", ".join(able)
    return False, "; ".join(f"{name}: {why}" for name, _, why in answers) or "no kernel family is installed"


def _fault(m: int, n: int, k: int, dtype: torch.dtype, activations: str) -> str | None:
    """What is wrong with a product for every family."""
    if activations not in ("w4a4", "w4a16"):
        return f"unknown activations '{activations}' (w4a4, w4a16)"
    if dtype not in DTYPES:
        return f"kernels compute in bfloat16 or float16, not {dtype_name(dtype)}"
    if k < BLOCK or k % BLOCK:
        return f"K={k} is not a positive multiple of {BLOCK}"
    if n < 1:
        return f"N={n} is not positive"
    if m < 1:
        return f"M={m} has nothing to compute"
    return None


@lru_cache(maxsize=64)
def target(index: int) -> Target:
    """CUDA device ``index`` as dispatch sees it.

    Raises:
        ResetError: its architecture is too old.
    """
    properties = torch.cuda.get_device_properties(index)
    return Target(properties.name, architecture((properties.major, properties.minor)), properties.multi_processor_count)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)


class Dispatcher:
    """Plans by (device, product); one for the process is ``dispatcher``.

    ``notify`` is told once a device that its choices are not measured, or that a table is damaged; by default a Python
    warning (stderr).
    """

    def __init__(self, known: Sequence[Family] | None = None, notify: Callable[[str], None] = _warn):
        self._families = known
        self.notify = notify
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._tables: dict[str, tuple[KernelTable, KernelTable]] = {}
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def families(self) -> Sequence[Family]:
        """The families that are chosen among."""
        return families() if self._families is None else self._families

    def plan(
        self,
        where: Target,
        m: int,
        n: int,
        k: int,
        dtype: torch.dtype,
        activations: str,
        layouts: tuple[str, ...] | None = None,
    ) -> Plan:
        """The way to compute a product, the same at every call.

        Args:
            layouts: layouts of the weight that are at hand; None for any.

        Raises:
            ResetError: no family can; the message says why.
        """
        key = (where, m, n, k, dtype, activations, layouts)
        if (found := self._plans.get(key)) is None:
            with self._lock:
                found = self._plans.setdefault(key, self._choose(where, m, n, k, dtype, activations, layouts))
        return found

    def measured(
        self, where: Target, family: Family, m: int, n: int, k: int, dtype: torch.dtype, activations: str
    ) -> Timed | None:
        """What the tables hold of ``family`` for a product, whichever family they prefer; None if nothing."""
        key = Key(m, n, k, dtype_name(dtype), activations)
        for table in self._tables_of(where.name):
            entry = table.find(key)
            for choice in entry.choices if entry is not None else ():
                if choice.family == family.name:
                    return choice
        return None

    def forget(self) -> None:
        """Read tables anew and plan anew (after tuning)."""
        with self._lock:
            self._plans.clear()
            self._tables.clear()

    def _choose(
        self, where: Target, m: int, n: int, k: int, dtype: torch.dtype, activations: str,
        layouts: tuple[str, ...] | None,
    ) -> Plan:  # fmt: skip
        able: dict[str, Family] = {}
        reasons = []
        fault = _fault(m, n, k, dtype, activations)
        for family in () if fault else self.families():
            can, why = family.supports(where.arch, m, n, k, dtype, activations)
            if can and layouts is not None and family.layout not in layouts:
                can, why = False, f"it needs the weight in layout {family.layout}"
            if can:
                able[family.name] = family
            else:
                reasons.append(f"{family.name}: {why}")
        if not able:
            why = fault or "; ".join(reasons) or "no kernel family is installed"
            raise ResetError(
                f"no kernel for M={m}, N={n}, K={k}, {dtype_name(dtype)}, {activations} on {where.arch}: {why}"
            )
        key = Key(m, n, k, dtype_name(dtype), activations)
        for table, source in zip(self._tables_of(where.name), ("user table", "shipped table"), strict=True):
            if (entry := table.find(key)) is None:
                continue
            for choice in entry.choices:
                if choice.family in able:
                    family = able[choice.family]
                    config = self._valid(family, choice, m, n, k, where.multiprocessors, activations)
                    form = family.form_for(activations)
                    return Plan(family, config, choice.pdl, form, source, choice.us, entry.bf16_us)
        self._tell(
            where.name,
            f"no measured kernel choices for {where.name} and shape {n}x{k}: a cost model chooses; "
            f"'reset bench-kernels --tune' measures",
        )
        family = min(able.values(), key=lambda each: each.cost(m, activations))
        config = family.configs(m, n, k, where.multiprocessors, activations)[0]
        # Unmeasured, but overlapping launches was worth more than any configuration on the small shapes of an H200.
        pdl = EARLY if architecture_number(where.arch) >= 90 else 0
        return Plan(family, config, pdl, family.form_for(activations), "cost model")

    def _valid(
        self, family: Family, choice: Timed, m: int, n: int, k: int, multiprocessors: int, activations: str
    ) -> dict[str, Any]:
        """A table's configuration if this version has it for this M and it is steady, else the family's own first."""
        configs = family.configs(m, n, k, multiprocessors, activations)
        found = next((config for config in configs if same_config(config, choice.config)), configs[0])
        return found if family.steady(found, m, n, k, multiprocessors) else configs[0]

    def _tables_of(self, device: str) -> tuple[KernelTable, KernelTable]:
        if device not in self._tables:
            read = []
            for path in (user_path(device), shipped_path(device)):
                try:
                    read.append(merge([load_table(path)], device))
                except ResetError as exc:
                    self._tell(str(path), f"{exc} (it is ignored)")
                    read.append(KernelTable(device))
            self._tables[device] = (read[0], read[1])
        return self._tables[device]

    def _tell(self, about: str, message: str) -> None:
        if about not in self._told:
            self._told.add(about)
            self.notify(message)


dispatcher = Dispatcher()
"""The process's dispatcher."""


def layouts_for(
    where: Target, decode: Sequence[int], prefill: Sequence[int], n: int, k: int, dtype: torch.dtype, activations: str,
    among: Dispatcher | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """The fewest weight layouts that serve: the best ones for the M of ``decode``, and others only for an M of
    ``prefill`` that those cannot serve. Sorted.

    Raises:
        ResetError: no family can serve one of the M.
    """
    among = among or dispatcher
    chosen = {among.plan(where, m, n, k, dtype, activations).family.layout for m in decode}
    for m in prefill:
        try:
            among.plan(where, m, n, k, dtype, activations, tuple(sorted(chosen)))
        except ResetError:
            chosen.add(among.plan(where, m, n, k, dtype, activations).family.layout)
    return tuple(sorted(chosen))
