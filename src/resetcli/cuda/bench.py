"""``reset bench-kernels``: small-M products on cold weights, checked against float64 in the same run.

For each shape the backends' operands are loaded in several copies, each M is timed on them with candidates and
read-only passes interleaved (``timing``), and each output is compared with float64 (``problem``). A backend that is
wrong is reported as wrong and makes the whole run fail: a fast wrong kernel is not a result.

Shares of bandwidth are relative to what this machine reads in this run, not to a data sheet. On a GPU a kernel's share
is that of the product alone (X quantized before, no overlap of launches) over the fastest read-only kernel of the same
weight and scale bytes (``readers``), in the same rounds; its time is that of everything on. A backend that fails there
is listed with the reason and the others go on. On a CPU our layer
multiplies the dequantized copy that it caches, so its bytes are that copy's, and 4 bits save memory on disk only;
the figure says what the CPU path costs, not what NVFP4 can do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import Reporter
from resetcli.base.versions import versions
from resetcli.cuda import kernel_backends, peers
from resetcli.cuda.backends import BASELINE, Backend, Operand, backends
from resetcli.cuda.kernel_backends import KernelBackend
from resetcli.cuda.machine import describe_machine
from resetcli.cuda.problem import Problem, check, make_problem, row_error
from resetcli.cuda.shapes import BLOCK, PAPER, Shape
from resetcli.cuda.summary import summarize
from resetcli.cuda.timing import Candidate, Reader, last_level_cache, reason, reuse_distance, time_cpu, time_cuda

__all__ = ["COLUMNS", "describe_machine", "run_bench", "table"]

kernel_backends.register_all()
peers.register_all()

COLD_MULTIPLE = {"cpu": 2.0, "cuda": 4.0}
"""Bytes wanted between two uses of the same weights, in last-level caches."""
MEMORY = {"cpu": 2.0e9, "cuda": 8.0e9}
ROUNDS = {"cpu": (3, 30), "cuda": (20, 200)}
"""Least and most timed rounds a row; the time budget decides between them."""

COLUMNS = (
    "shape", "M", "backend", "us", "min", "quartiles", "GB/s", "alone", "of read", "vs BF16", "rounds", "check",
)  # fmt: skip


def run_bench(
    ms: Sequence[int],
    shapes: Sequence[Shape] = PAPER,
    *,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
    seconds: float = 30.0,
    memory: float | None = None,
    on_shape: Callable[[dict[str, Any]], None] | None = None,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Time and check the backends for each of ``shapes`` and ``ms``.

    Args:
        device: torch device; None is CUDA where there is one, else the CPU.
        dtype: type of the layer's X and Y; None is float32 on a CPU (what the engine runs), bfloat16 on CUDA.
        names: backends, None for all that are meant for the device; the BF16 baseline always runs.
        seed: of weights and inputs.
        seconds: for the timed rounds in all; set-up and checks come on top. A row never has fewer than the least
            rounds of ``ROUNDS``.
        memory: bytes that rotated copies of weights may take, None for 2 GB on a CPU and 8 GB on CUDA; one copy is
            always made.
        on_shape: called after each shape with the document so far, so that a run cut short loses one shape.

    Returns:
        The JSON document: {"bench", "ok", "wrong" (names of rows that failed the check), "machine", "versions",
        "method", "seed", "read" (bytes/s by method), "rows", "skipped", "failed" (shapes), "summary" (see
        ``summary``)}. A row has "n", "k", "label", "m", "backend", "us" (median), "us_min", "us_q1", "us_q3",
        "rounds", "copies", "bytes", "gb_s", "read_gb_s", "of_read", "speedup" (over BF16; None without one),
        "slower_than_bf16", "cold" (last-level caches between two uses), "correct", "error" (in bounds). On a GPU, one
        of our kernels also has "family", "config", "pdl", "source" (of the choice), "row_error" (largest
        ||Y-R||/||R||), "alone_us", "alone_config", "read_us" and "pdl_read_us" (fastest read-only kernels), and its
        "of_read" is read_us / alone_us.

    Raises:
        UsageError: no M or shape, unknown backend or device.
        ResetError: out of memory, naming the shape.
    """
    reporter = reporter or Reporter()
    if not ms or not shapes:
        raise UsageError("the bench needs at least one --M and one of --shapes")
    where = bench_device(device)
    dtype = dtype or (torch.bfloat16 if where.type == "cuda" else torch.float32)
    memory = MEMORY[where.type] if memory is None else memory
    chosen = backends(names, where.type)
    kernel_backends.family_plan.cache_clear()  # tables may have been written since
    time_all = time_cuda if where.type == "cuda" else time_cpu
    cache = last_level_cache(where)
    # Large enough that wrapping round it finds nothing in cache; on a CPU the backends' calls in between help.
    span = (1.25 if where.type == "cpu" else COLD_MULTIPLE["cuda"]) * cache
    reader = Reader(int(min(max(span, 64e6), memory / 3)), where)
    rates = reader.choose(time_all)
    work = sum(shape.elements for shape in shapes) * len(ms)
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    document: dict[str, Any] = {
        "bench": "kernels",
        "ok": True,
        "wrong": [],
        "machine": describe_machine(where, cache),
        "versions": versions(),
        "method": _method(where, chosen, dtype, seconds, memory, reader.method),
        "seed": seed,
        "read": rates,
        "rows": rows,
        "skipped": skipped,
        "failed": [],
        "summary": {},
    }
    begun = time.perf_counter()
    with torch.inference_mode(), reporter.phase("bench", total=len(shapes) * len(ms)) as advance:
        for index, shape in enumerate(shapes):
            budget = [seconds * shape.elements / work] * len(ms)
            try:
                case = _Case(shape, ms, chosen, where, dtype, seed + index, memory, cache, skipped)
                for m, share in zip(ms, budget, strict=True):
                    rows += case.run(m, reader, time_all, share, skipped)
                    advance(1)
                # Freed before the next shape is loaded, or both would be in memory at once.
                del case
            except (MemoryError, torch.OutOfMemoryError) as exc:
                raise ResetError(f"out of memory at shape {shape}; leave it out with --shapes") from exc
            except (ResetError, RuntimeError) as exc:
                if where.type != "cuda":
                    raise
                document["failed"].append({"n": shape.n, "k": shape.k, "why": reason(exc)})
                reporter.warn(f"{shape} failed: {reason(exc)}")
            wrong = [f"{row['backend']} {row['n']}x{row['k']} M={row['m']}" for row in rows if not row["correct"]]
            document |= {"ok": not wrong and not document["failed"], "wrong": wrong, "summary": summarize(rows)}
            if where.type == "cuda":
                torch.cuda.empty_cache()  # each graph had memory of its own
                reporter.info(f"timed {shape} after {time.perf_counter() - begun:.1f} s")
            if on_shape is not None:
                on_shape(document)
    return document


class _Case:
    """One shape with its problem and its loaded operands, timed for one M after the other."""

    def __init__(
        self, shape: Shape, ms: Sequence[int], chosen: list[Backend], device: torch.device, dtype: torch.dtype,
        seed: int, memory: float, cache: int, skipped: list[dict[str, Any]],
    ):  # fmt: skip
        self.shape, self.chosen, self.device, self.dtype, self.cache = shape, chosen, device, dtype, cache
        self.cuda = device.type == "cuda"
        self.problem: Problem = make_problem(shape, max(ms), seed, device if self.cuda else "cpu")
        makers: dict[str, Backend] = {}
        for backend in reversed(chosen):
            for m in ms:
                if backend.supports(device, m, shape.n, shape.k, dtype)[0]:
                    makers[backend.operand_at(device, m, shape.n, shape.k, dtype)] = backend
        self.operands: dict[str, list[Operand]] = {}
        self.broken: dict[str, str] = {}
        for name, backend in makers.items():
            try:
                self.operands[name] = [backend.load(self.problem, device, dtype, name)]
            except Exception as exc:  # whatever another project's loading raises
                if not self.cuda or backend.name == BASELINE:
                    raise
                self.broken[name] = f"loading failed: {reason(exc)}"
        # The layer keeps its packed form beside the cached one, hence the sixth on top.
        room = memory * 6 / 7 / sum(operand[0].weight_bytes for operand in self.operands.values())
        able = range(1, max(1, min(int(room), 64)) + 1)
        wanted = COLD_MULTIPLE[device.type] * cache
        enough = (count for count in able if self._distance(count) >= wanted)
        self.copies = next(enough, None) or max(able, key=lambda count: (self._distance(count), -count))
        for name in self.operands:
            first, backend = self.operands[name][0], makers[name]
            self.operands[name] += [backend.duplicate(first) for _ in range(self.copies - 1)]
        self.reads: _Reads | None = None
        if self.cuda and any(isinstance(backend, KernelBackend) for backend in chosen):
            try:
                self.reads = _Reads(shape, self.copies, device)
            except (ResetError, RuntimeError) as exc:
                skipped.append({"backend": "read", "n": shape.n, "k": shape.k, "m": ms[0], "why": reason(exc)})

    def _distance(self, copies: int) -> int:
        """Bytes between two uses of the same weights with that many copies, X and Y left out."""
        if self.cuda:
            # Each graph takes the copies in the same order, so what comes in between is all the others.
            return copies * min(operand[0].weight_bytes for operand in self.operands.values())
        plan, sizes = [], set()
        able = [backend for backend in self.chosen if backend.operand in self.operands]
        for index, backend in enumerate(able):
            size = self.operands[backend.operand][0].weight_bytes
            names = [f"{backend.operand} {i}" for i in self._turned(index, copies)]
            plan.append(Candidate(backend.name, [], size, names))
            if size not in sizes:
                sizes.add(size)
                plan.append(Candidate("read", [], size, []))
        return reuse_distance(plan)

    def _turned(self, index: int, copies: int) -> list[int]:
        """Order in which the backend at ``index`` takes the copies: where calls alternate, two backends that share
        them start half a turn apart."""
        shift = 0 if self.cuda else -(-index * copies // len(self.chosen))
        return [(i + shift) % copies for i in range(copies)]

    def run(
        self, m: int, reader: Reader, time_all: Callable[..., None], seconds: float, skipped: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Rows of this shape at ``m``."""
        n, k = self.shape.n, self.shape.k
        least, most = ROUNDS[self.device.type]
        candidates: list[Candidate] = []
        reads: dict[int, Candidate] = {}
        running: list[tuple[Backend, Candidate]] = []
        alone: dict[str, tuple[dict[str, Any], Candidate]] = {}
        verdicts: dict[str, dict[str, Any]] = {}

        def skip(backend: str, why: str) -> None:
            skipped.append({"backend": backend, "n": n, "k": k, "m": m, "why": why})

        for backend in self.chosen:
            able, why = backend.supports(self.device, m, n, k, self.dtype)
            operand = backend.operand_at(self.device, m, n, k, self.dtype) if able else ""
            if not able or operand in self.broken:
                skip(backend.name, why or self.broken[operand])
                continue
            x = self.problem.x[:m].to(self.device, backend.input_dtype(self.dtype))
            try:
                verdicts[backend.name] = self._check(backend, self.operands[operand][0], x, m)
                candidate = self._candidate(backend, operand, x, len(running))
                if isinstance(backend, KernelBackend):
                    config, calls = backend.alone(self.operands[operand], x)
                    alone[backend.name] = config, Candidate(f"{backend.name} alone", calls, candidate.bytes, [])
            except (ResetError, RuntimeError, TypeError, AttributeError, ImportError) as exc:
                if not self.cuda or backend.name == BASELINE:
                    raise
                skip(backend.name, f"it failed: {reason(exc)}")
                continue
            running.append((backend, candidate))
            candidates.append(candidate)
            if backend.name in alone:
                candidates.append(alone[backend.name][1])
            elif candidate.bytes not in reads:
                views = reader.windows(candidate.bytes, self.copies)
                thunks = [reader.thunk(view) for view in views]
                reads[candidate.bytes] = Candidate("read", thunks, candidate.bytes, [])
                candidates.append(reads[candidate.bytes])
        ceilings = self.reads.candidates() if self.reads is not None and alone else {}
        candidates += ceilings.values()
        failed: dict[str, str] = {}
        time_all(candidates, seconds=seconds, least=least, most=most, **({"failed": failed} if self.cuda else {}))
        for name, why in failed.items():
            skip(name, f"it failed: {why}")
        distance = reuse_distance(candidates, grouped=self.cuda)
        base = next((float(np.median(c.seconds)) for b, c in running if b.name == BASELINE and c.seconds), None)
        rows = []
        for backend, candidate in running:
            if not candidate.seconds:
                continue
            low, q1, median, q3 = np.percentile(candidate.seconds, [0, 25, 50, 75]).tolist()
            row = {
                "n": n, "k": k, "label": self.shape.label, "m": m, "backend": backend.name,
                "us": median * 1e6, "us_min": low * 1e6, "us_q1": q1 * 1e6, "us_q3": q3 * 1e6,
                "rounds": len(candidate.seconds), "copies": self.copies, "bytes": candidate.bytes,
                "gb_s": candidate.bytes / median / 1e9, "read_gb_s": None, "of_read": None,
                "speedup": None if base is None else base / median,
                "slower_than_bf16": base is not None and median > base, "cold": distance / self.cache,
                **verdicts[backend.name],
            }  # fmt: skip
            if backend.name not in alone:
                times = reads[candidate.bytes].seconds
                if times:
                    read = float(np.median(times))
                    row |= {"read_gb_s": candidate.bytes / read / 1e9, "of_read": read / median}
            elif isinstance(backend, KernelBackend):
                config, product = alone[backend.name]
                row |= backend.describe(self.device, m, n, k, self.dtype)
                row |= kernel_columns(n * k * 9 // BLOCK, config, product, ceilings)
            rows.append(row)
        return rows

    def _candidate(self, backend: Backend, operand: str, x: torch.Tensor, index: int) -> Candidate:
        operands = self.operands[operand]
        turned = self._turned(index, len(operands))
        calls = [backend.call(operands[i]) for i in turned]
        moved = operands[0].weight_bytes + x.numel() * x.element_size() + x.shape[0] * self.shape.n * x.element_size()
        return Candidate(
            backend.name,
            [lambda call=call: call(x) for call in calls],  # type: ignore[misc]
            moved,
            [f"{operand} {i}" for i in turned],
        )

    def _check(self, backend: Backend, operand: Operand, x: torch.Tensor, m: int) -> dict[str, Any]:
        """Columns "correct" and "error", and for a kernel "row_error"."""
        problem = self.problem
        y = backend.call(operand)(x)
        if tuple(y.shape) != (m, self.shape.n):
            return {"correct": False, "error": None}
        slack = None
        if (own := backend.truth(operand, x)) is not None:
            truth, size = own
        elif backend.quantizes:
            truth, size, slack = problem.quantized[:m], problem.quantized_size[:m], problem.quantized_slack[:m]
        elif backend.plain:
            truth, size = problem.plain[:m], problem.plain_size[:m]
        else:
            truth, size = problem.plain[:m] * problem.global_scale, problem.plain_size[:m] * problem.global_scale
        verdict = check(y, truth, size, slack, backend.tolerance(self.dtype), backend.rounding)
        found = {"correct": verdict.correct, "error": verdict.worst if math.isfinite(verdict.worst) else None}
        if isinstance(backend, KernelBackend):
            error = row_error(y, truth)
            found["row_error"] = error if math.isfinite(error) else None
        return found


class _Reads:
    """The read-only kernels of one shape, chosen once."""

    def __init__(self, shape: Shape, copies: int, device: torch.device):
        from resetcli.cuda.dispatch import target
        from resetcli.cuda.launch import device_index
        from resetcli.cuda.readers import ReadKernels

        where = target(device_index(device))
        size = shape.elements * 9 // BLOCK
        self.size, self.kernels = size, ReadKernels(size, copies, device, where.multiprocessors, where.arch)
        self.kernels.choose(torch.cuda.Stream())

    def candidates(self) -> dict[bool, Candidate]:
        """By whether launches overlap."""
        return {
            overlap: Candidate(f"read kernel{' pdl' * overlap}", self.kernels.thunks(overlap), self.size, [])
            for overlap in self.kernels.best
        }


def kernel_columns(
    size: int, config: dict[str, Any], alone: Candidate, ceilings: dict[bool, Candidate]
) -> dict[str, Any]:
    """A kernel's columns beyond the common ones: the product alone, and reads of ``size`` bytes."""

    def microseconds(candidate: Candidate | None) -> float | None:
        return None if candidate is None or not candidate.seconds else float(np.median(candidate.seconds)) * 1e6

    product, read, overlapped = (microseconds(c) for c in (alone, ceilings.get(False), ceilings.get(True)))
    return {
        "alone_us": product, "alone_config": config, "read_us": read, "pdl_read_us": overlapped,
        "of_read": None if read is None or product is None else read / product,
        "read_gb_s": None if read is None else size / read / 1e3,
    }  # fmt: skip


def table(document: dict[str, Any]) -> list[list[str]]:
    """The rows of ``run_bench`` as strings under ``COLUMNS``."""
    return [
        [
            f"{row['n']}x{row['k']}", str(row["m"]), row["backend"], f"{row['us']:.1f}", f"{row['us_min']:.1f}",
            f"{row['us_q1']:.1f}-{row['us_q3']:.1f}", f"{row['gb_s']:.1f}",
            f"{row['alone_us']:.1f}" if row.get("alone_us") is not None else "",
            f"{100 * row['of_read']:.0f} %" if row["of_read"] is not None else "",
            (f"{row['speedup']:.2f}" if row["speedup"] is not None else "") + " slower" * row["slower_than_bf16"],
            str(row["rounds"]), "ok" if row["correct"] else "WRONG",
        ]
        for row in document["rows"]
    ]  # fmt: skip


def bench_device(name: str | None) -> torch.device:
    """The torch device called ``name``, made the current one; None is CUDA where there is one, else the CPU.

    Raises:
        UsageError: it is not there, or neither a CPU nor CUDA.
    """
    if name is None:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as exc:
        raise UsageError(f"--device {name}: not a torch device; use cpu or cuda") from exc
    if device.type not in COLD_MULTIPLE:
        raise UsageError(f"--device {name}: the bench knows cpu and cuda")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"--device {name}: no CUDA device here; use --device cpu")
        if (device.index or 0) >= torch.cuda.device_count():
            raise UsageError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices")
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    return device


def _method(
    device: torch.device, chosen: list[Backend], dtype: torch.dtype, seconds: float, memory: float, read: str
) -> dict[str, Any]:
    least, most = ROUNDS[device.type]
    clock = (
        "CUDA graph of all copies, replayed between events" if device.type == "cuda" else "perf_counter round a call"
    )
    kernels = {
        "kernels": "us: 16-bit X to Y, quantization of X and programmatic dependent launch as tables say; alone_us: "
        "the product on X quantized before, no overlap; read_us, pdl_read_us: fastest of the read-only kernels over "
        "N K 9/16 random bytes, as many copies, without and with overlap; of_read: read_us / alone_us",
    }
    return {
        **(kernels if device.type == "cuda" else {}),
        "dtype": str(dtype).removeprefix("torch."),
        "weights": f"cold: copies in rotation, {COLD_MULTIPLE[device.type]:g} last-level caches wanted between "
        f"two uses, at most {memory / 1e9:g} GB of copies; a row's 'cold' says how many lay between",
        "order": "backends and read-only passes alternate within each round",
        "clock": clock,
        "rounds": f"{least} to {most} a row after 1 of warm-up, within {seconds:g} s over all rows; "
        "medians, quartiles, minima",
        "inputs": "codes uniform over 16 values, block scales log-uniform over 2^-8..2^8, X normal with block spread "
        "2^-4..2^4, new for each shape",
        "check": "each element against float64 of the same operands, bound relative to sum |x||w|",
        "bytes": "weights as the backend reads them (our layer in torch: its cached dequantized copy), X and Y",
        "read": f"of other backends: torch {read} over float32, same number of bytes, same rounds; fastest of "
        f"{', '.join(Reader.METHODS)}",
        "backends": {backend.name: backend.about for backend in chosen},
    }
