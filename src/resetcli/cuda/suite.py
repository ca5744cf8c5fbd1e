"""All parts of ``reset bench-kernels`` in one process: tuning, the bench, and what is measured beside it.

After each part, and after each shape of the bench, the document is handed to ``save``, so that a run cut short loses
little. A part that fails is named in the document and the others go on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from resetcli.base.errors import ResetError
from resetcli.base.files import write_json
from resetcli.base.reporting import Reporter
from resetcli.cuda.availability import kernels_available
from resetcli.cuda.backends import Backend, backends
from resetcli.cuda.bench import bench_device, run_bench
from resetcli.cuda.kernel_backends import KernelBackend
from resetcli.cuda.kernel_table import KernelTable
from resetcli.cuda.machine import commit, describe_machine
from resetcli.cuda.shapes import PRESETS, Shape
from resetcli.cuda.timing import reason

Save = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Parts:
    """What runs beside the bench. ``layers``: presets; ``tune_output``: a file for the table of this run;
    ``families``, ``activations``: that tuning tries."""

    tune: bool = False
    tune_seconds: float | None = None
    tune_output: Path | None = None
    families: Sequence[str] | None = None
    activations: Sequence[str] = ("w4a4",)
    ablate: bool = False
    layers: Sequence[str] = ()
    activation_quant: bool = False

    def need_kernels(self) -> list[str]:
        """The options that make no sense without a GPU."""
        asked = {
            "--tune": self.tune, "--ablate": self.ablate, "--layers": bool(self.layers),
            "--activation-quant": self.activation_quant,
        }  # fmt: skip
        return [option for option, wanted in asked.items() if wanted]


class Elapsed(Reporter):
    """Puts the seconds since it was made before each line."""

    def __init__(self, inner: Reporter):
        self.inner, self.begun = inner, time.perf_counter()

    def _stamp(self, message: str) -> str:
        return f"[{time.perf_counter() - self.begun:.1f} s] {message}"

    def info(self, message: str) -> None:
        self.inner.info(self._stamp(message))

    def warn(self, message: str) -> None:
        self.inner.warn(self._stamp(message))

    @contextlib.contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        with self.inner.phase(self._stamp(name), total) as advance:
            yield advance


def run_suite(
    ms: Sequence[int],
    shapes: Sequence[Shape],
    *,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
    seconds: float = 30.0,
    parts: Parts | None = None,
    given_commit: str | None = None,
    save: Save | None = None,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """``run_bench`` with ``parts`` around it.

    Args:
        parts: what else to run; None for nothing.
        given_commit: for the document; None: this checkout's, where it is one.
        save: called with the document so far.

    Returns:
        ``run_bench``'s document and "commit", "parts_failed" {part: reason}, and of the parts that ran "tuning"
        {"seconds", "entries"}, "table" (as a table's file holds it), "ablation", "layers", "activation_quant".

    Raises:
        UsageError: as ``run_bench``.
        ResetError: a part was asked for that needs the kernels, and they are not there.
    """
    parts = parts or Parts()
    where = bench_device(device)
    chosen = backends(names, where.type)  # a wrong name is said before anything is compiled or tuned
    if asked := parts.need_kernels():
        there, why = kernels_available(where) if where.type == "cuda" else (False, f"the device is {where}")
        if not there:
            raise ResetError(f"{', '.join(asked)}: no CUDA kernels here: {why}")
    kernels = where.type == "cuda" and kernels_available(where)[0]
    if where.type == "cuda":
        reporter = Elapsed(reporter or Reporter())
    reporter = reporter or Reporter()
    extra: dict[str, Any] = {"commit": commit(given_commit), "parts_failed": {}}
    found: dict[str, Any] = {"bench": "kernels", "ok": False}

    def keep(document: dict[str, Any] | None = None) -> None:
        found.update(document or {})
        found.update(extra)
        if save is not None:
            save(found)

    @contextlib.contextmanager
    def part(name: str) -> Iterator[None]:
        try:
            yield
        except (ResetError, RuntimeError, AssertionError) as exc:
            extra["parts_failed"][name] = reason(exc)
            reporter.warn(f"{name} failed: {reason(exc)}")
        keep()
        reporter.info(f"{name} is done")

    layers = [shape for preset in parts.layers for shape in PRESETS[preset]]
    if kernels:
        with part("compile"):
            _compile(where, ms, [*shapes, *layers], _modes(chosen, parts), reporter)
    if parts.tune:
        with part("tune"):
            # What dispatch chooses for --layers shall be measured too.
            every = list({(shape.n, shape.k): shape for shape in [*layers, *shapes]}.values())
            _tune(extra, parts, every, ms, where, dtype, seed, reporter)
    document = run_bench(
        ms, shapes, device=device, dtype=dtype, names=names, seed=seed, seconds=seconds,
        on_shape=keep if save is not None else None, reporter=reporter,
    )  # fmt: skip
    keep(document)
    kind = dtype or torch.bfloat16
    if parts.layers:
        from resetcli.cuda.layer_chain import layer_chains

        with part("layers"):
            extra["layers"] = layer_chains(ms, parts.layers, device=where, dtype=kind, seed=seed, reporter=reporter)
    if parts.ablate:
        from resetcli.cuda.ablation import ablate

        with part("ablation"):
            extra["ablation"] = ablate(ms, shapes, device=where, dtype=kind, seed=seed, reporter=reporter)
    if parts.activation_quant:
        from resetcli.cuda.activation_cost import activation_cost

        with part("activation_quant"):
            ks = [shape.k for shape in shapes]
            extra["activation_quant"] = activation_cost(ms, ks, device=where, dtype=kind, seed=seed, reporter=reporter)
    wrong = [
        f"{name} {row.get('off') or row.get('preset')} M={row['m']}"
        for name in ("ablation", "layers")
        for row in extra.get(name, {}).get("rows", ())
        if not row["correct"]
    ]
    document["wrong"] = [*document["wrong"], *dict.fromkeys(wrong)]
    document["ok"] = document["ok"] and not wrong and not extra["parts_failed"]
    document["machine"] = describe_machine(where)  # clocks as they are after the work
    keep(document)
    return found


def _modes(chosen: Sequence[Backend], parts: Parts) -> set[str]:
    """What happens to X in the products that will run."""
    found = {"w4a4", *(backend.mode for backend in chosen if isinstance(backend, KernelBackend))}
    return found | set(parts.activations) if parts.tune else found


def _compile(
    where: torch.device, ms: Sequence[int], shapes: Sequence[Shape], modes: Collection[str], reporter: Reporter
) -> None:
    from resetcli.cuda.dispatch import target
    from resetcli.cuda.launch import device_index
    from resetcli.cuda.precompile import needed, precompile

    arch = target(device_index(where)).arch
    precompile(needed(arch, ms, [shape.k for shape in shapes], modes), arch, reporter=reporter)


def _tune(
    extra: dict[str, Any], parts: Parts, shapes: Sequence[Shape], ms: Sequence[int], where: torch.device,
    dtype: torch.dtype | None, seed: int, reporter: Reporter,
) -> None:  # fmt: skip
    """Fill "tuning" and "table" of ``extra``, and the file, shape by shape."""
    from resetcli.cuda.tune import THOROUGH, tune

    begun = time.perf_counter()

    def keep(table: KernelTable) -> None:
        held = table.to_json()
        extra.update(tuning={"seconds": time.perf_counter() - begun, "entries": len(table.entries)}, table=held)
        if parts.tune_output is not None:
            write_json(parts.tune_output, held)

    tune(
        shapes, ms, device=where, dtype=dtype or torch.bfloat16, activations=parts.activations, seed=seed,
        seconds=parts.tune_seconds, thorough=THOROUGH if parts.families is None else parts.families, on_shape=keep,
        reporter=reporter,
    )  # fmt: skip
