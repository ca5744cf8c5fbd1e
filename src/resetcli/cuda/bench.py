"""``reset bench-kernels``: small-M products on cold weights, checked against float64 in the same run.

For each shape the backends' operands are loaded in several copies, each M is timed on them with candidates and
read-only passes interleaved (``timing``), and each output is compared with float64 (``problem``). A backend that is
wrong is reported as wrong and makes the whole run fail: a fast wrong kernel is not a result.

Shares of bandwidth are relative to what this machine reads in this run, not to a data sheet. On a CPU our layer
multiplies the dequantized copy that it caches, so its bytes are that copy's, and 4 bits save memory on disk only;
the figure says what the CPU path costs, not what NVFP4 can do.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import Reporter
from resetcli.base.versions import versions
from resetcli.cuda.backends import BASELINE, Backend, Operand, backends
from resetcli.cuda.problem import Problem, check, make_problem
from resetcli.cuda.shapes import PAPER, Shape
from resetcli.cuda.timing import Candidate, Reader, last_level_cache, reuse_distance, time_cpu, time_cuda

COLD_MULTIPLE = {"cpu": 2.0, "cuda": 4.0}
"""Bytes wanted between two uses of the same weights, in last-level caches."""
MEMORY = {"cpu": 2.0e9, "cuda": 8.0e9}
ROUNDS = {"cpu": (3, 30), "cuda": (20, 200)}
"""Least and most timed rounds a row; the time budget decides between them."""

COLUMNS = ("shape", "M", "backend", "us", "min", "quartiles", "GB/s", "of read", "vs BF16", "rounds", "check")


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
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Time and check the backends for each of ``shapes`` and ``ms``.

    Args:
        device: torch device; None is CUDA where there is one, else the CPU.
        dtype: type of the layer's X and Y; None is float32 on a CPU (what the engine runs), bfloat16 on CUDA.
        names: backends, None for all; the BF16 baseline always runs.
        seed: of weights and inputs.
        seconds: for the timed rounds in all; set-up and checks come on top. A row never has fewer than the least
            rounds of ``ROUNDS``.
        memory: bytes that rotated copies of weights may take, None for 2 GB on a CPU and 8 GB on CUDA; one copy is
            always made.

    Returns:
        The JSON document: {"bench", "ok", "wrong" (names of rows that failed the check), "machine", "versions",
        "method", "seed", "read" (bytes/s by method), "rows", "skipped"}. A row has "n", "k", "label", "m",
        "backend", "us" (median), "us_min", "us_q1", "us_q3", "rounds", "copies", "bytes", "gb_s", "read_gb_s",
        "of_read", "speedup" (over BF16), "cold" (last-level caches between two uses), "correct", "error" (in bounds).

    Raises:
        UsageError: no M or shape, unknown backend or device.
        ResetError: out of memory, naming the shape.
    """
    reporter = reporter or Reporter()
    if not ms or not shapes:
        raise UsageError("the bench needs at least one --M and one of --shapes")
    where = _device(device)
    dtype = dtype or (torch.bfloat16 if where.type == "cuda" else torch.float32)
    memory = MEMORY[where.type] if memory is None else memory
    chosen = backends(names)
    time_all = time_cuda if where.type == "cuda" else time_cpu
    cache = last_level_cache(where)
    # Large enough that wrapping round it finds nothing in cache; on a CPU the backends' calls in between help.
    span = (1.25 if where.type == "cpu" else COLD_MULTIPLE["cuda"]) * cache
    reader = Reader(int(min(max(span, 64e6), memory / 3)), where)
    rates = reader.choose(time_all)
    work = sum(shape.elements for shape in shapes) * len(ms)
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    with torch.inference_mode(), reporter.phase("bench", total=len(shapes) * len(ms)) as advance:
        for index, shape in enumerate(shapes):
            budget = [seconds * shape.elements / work] * len(ms)
            try:
                case = _Case(shape, ms, chosen, where, dtype, seed + index, memory, cache)
                for m, share in zip(ms, budget, strict=True):
                    rows += case.run(m, reader, time_all, share, skipped)
                    advance(1)
                # Freed before the next shape is loaded, or both would be in memory at once.
                del case
            except (MemoryError, torch.OutOfMemoryError) as exc:
                raise ResetError(f"out of memory at shape {shape}; leave it out with --shapes") from exc
    wrong = [f"{row['backend']} {row['n']}x{row['k']} M={row['m']}" for row in rows if not row["correct"]]
    return {
        "bench": "kernels",
        "ok": not wrong,
        "wrong": wrong,
        "machine": describe_machine(where, cache),
        "versions": versions(),
        "method": _method(where, chosen, dtype, seconds, memory, reader.method),
        "seed": seed,
        "read": rates,
        "rows": rows,
        "skipped": skipped,
    }


class _Case:
    """One shape with its problem and its loaded operands, timed for one M after the other."""

    def __init__(
        self, shape: Shape, ms: Sequence[int], chosen: list[Backend], device: torch.device, dtype: torch.dtype,
        seed: int, memory: float, cache: int,
    ):  # fmt: skip
        self.shape, self.chosen, self.device, self.dtype, self.cache = shape, chosen, device, dtype, cache
        self.problem: Problem = make_problem(shape, max(ms), seed)
        makers = {
            backend.operand: backend
            for backend in reversed(chosen)
            if any(backend.supports(device, m, shape.n, shape.k, dtype)[0] for m in ms)
        }
        self.operands: dict[str, list[Operand]] = {
            name: [backend.load(self.problem, device, dtype)] for name, backend in makers.items()
        }
        # The layer keeps its packed form beside the cached one, hence the sixth on top.
        room = memory * 6 / 7 / sum(operand[0].weight_bytes for operand in self.operands.values())
        able = range(1, max(1, min(int(room), 64)) + 1)
        wanted = COLD_MULTIPLE[device.type] * cache
        enough = (count for count in able if self._distance(count) >= wanted)
        copies = next(enough, None) or max(able, key=lambda count: (self._distance(count), -count))
        for name, backend in makers.items():
            self.operands[name] += [backend.duplicate(self.operands[name][0]) for _ in range(copies - 1)]
        self.copies = copies

    def _distance(self, copies: int) -> int:
        """Bytes between two uses of the same weights with that many copies, X and Y left out."""
        plan, sizes = [], set()
        able = [backend for backend in self.chosen if backend.operand in self.operands]
        for index, backend in enumerate(able):
            size = self.operands[backend.operand][0].weight_bytes
            names = [f"{backend.operand} {i}" for i in self._turned(index, copies)]
            plan.append(Candidate(backend.name, [], size, names))
            if size not in sizes:
                sizes.add(size)
                plan.append(Candidate("read", [], size, []))
        return reuse_distance(plan, grouped=self.device.type == "cuda")

    def _turned(self, index: int, copies: int) -> list[int]:
        """Order in which the backend at ``index`` takes the copies: two that share them start half a turn apart."""
        shift = -(-index * copies // len(self.chosen))
        return [(i + shift) % copies for i in range(copies)]

    def run(
        self, m: int, reader: Reader, time_all: Callable[..., None], seconds: float, skipped: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Rows of this shape at ``m``."""
        least, most = ROUNDS[self.device.type]
        candidates: list[Candidate] = []
        reads: dict[int, Candidate] = {}
        inputs: dict[str, torch.Tensor] = {}
        running: list[tuple[Backend, Candidate]] = []
        for backend in self.chosen:
            able, why = backend.supports(self.device, m, self.shape.n, self.shape.k, self.dtype)
            if not able:
                skipped.append({"backend": backend.name, "n": self.shape.n, "k": self.shape.k, "m": m, "why": why})
                continue
            kind = backend.input_dtype(self.dtype)
            x = self.problem.x[:m].to(self.device, kind)
            inputs[backend.name] = x
            candidate = self._candidate(backend, x, len(running))
            running.append((backend, candidate))
            candidates.append(candidate)
            if candidate.bytes not in reads:
                views = reader.windows(candidate.bytes, self.copies)
                thunks = [reader.thunk(view) for view in views]
                reads[candidate.bytes] = Candidate("read", thunks, candidate.bytes, [])
                candidates.append(reads[candidate.bytes])
        verdicts = {backend.name: self._check(backend, inputs[backend.name], m) for backend, _ in running}
        time_all(candidates, seconds=seconds, least=least, most=most)
        distance = reuse_distance(candidates, grouped=self.device.type == "cuda")
        base = next(float(np.median(c.seconds)) for b, c in running if b.name == BASELINE)
        rows = []
        for backend, candidate in running:
            low, q1, median, q3 = np.percentile(candidate.seconds, [0, 25, 50, 75]).tolist()
            read = float(np.median(reads[candidate.bytes].seconds))
            correct, worst = verdicts[backend.name]
            rows.append({
                "n": self.shape.n, "k": self.shape.k, "label": self.shape.label, "m": m, "backend": backend.name,
                "us": median * 1e6, "us_min": low * 1e6, "us_q1": q1 * 1e6, "us_q3": q3 * 1e6,
                "rounds": len(candidate.seconds), "copies": self.copies, "bytes": candidate.bytes,
                "gb_s": candidate.bytes / median / 1e9, "read_gb_s": candidate.bytes / read / 1e9,
                "of_read": read / median, "speedup": base / median, "cold": distance / self.cache,
                "correct": correct, "error": worst if math.isfinite(worst) else None,
            })  # fmt: skip
        return rows

    def _candidate(self, backend: Backend, x: torch.Tensor, index: int) -> Candidate:
        operands = self.operands[backend.operand]
        turned = self._turned(index, len(operands))
        calls = [backend.call(operands[i]) for i in turned]
        moved = operands[0].weight_bytes + x.numel() * x.element_size() + x.shape[0] * self.shape.n * x.element_size()
        return Candidate(
            backend.name,
            [lambda call=call: call(x) for call in calls],  # type: ignore[misc]
            moved,
            [f"{backend.operand} {i}" for i in turned],
        )

    def _check(self, backend: Backend, x: torch.Tensor, m: int) -> tuple[bool, float]:
        problem = self.problem
        y = backend.call(self.operands[backend.operand][0])(x)
        if tuple(y.shape) != (m, self.shape.n):
            return False, float("inf")
        if backend.quantizes:
            truth, size, slack = problem.quantized[:m], problem.quantized_size[:m], problem.quantized_slack[:m]
        elif backend.plain:
            truth, size, slack = problem.plain[:m], problem.plain_size[:m], None
        else:
            truth, size = problem.plain[:m] * problem.global_scale, problem.plain_size[:m] * problem.global_scale
            slack = None
        verdict = check(y, truth, size, slack, backend.tolerance(self.dtype))
        return verdict.correct, verdict.worst


def table(document: dict[str, Any]) -> list[list[str]]:
    """The rows of ``run_bench`` as strings under ``COLUMNS``."""
    return [
        [
            f"{row['n']}x{row['k']}", str(row["m"]), row["backend"], f"{row['us']:.1f}", f"{row['us_min']:.1f}",
            f"{row['us_q1']:.1f}-{row['us_q3']:.1f}", f"{row['gb_s']:.1f}", f"{100 * row['of_read']:.0f} %",
            f"{row['speedup']:.2f}", str(row["rounds"]), "ok" if row["correct"] else "WRONG",
        ]
        for row in document["rows"]
    ]  # fmt: skip


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
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
        torch.cuda.set_device(device)
    return device


def describe_machine(device: torch.device, cache: int | None = None) -> dict[str, Any]:
    """What a result must say of the hardware: device, threads or multiprocessors, last-level cache in bytes."""
    cache = last_level_cache(device) if cache is None else cache
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return {
            "device": properties.name, "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count, "last_level_cache": cache, "cuda": torch.version.cuda,
        }  # fmt: skip
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "device": model, "threads": torch.get_num_threads(), "capability": torch.backends.cpu.get_cpu_capability(),
        "last_level_cache": cache,
    }  # fmt: skip


def _method(
    device: torch.device, chosen: list[Backend], dtype: torch.dtype, seconds: float, memory: float, read: str
) -> dict[str, Any]:
    least, most = ROUNDS[device.type]
    clock = (
        "CUDA graph of all copies, replayed between events" if device.type == "cuda" else "perf_counter round a call"
    )
    return {
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
        "bytes": "weights as the backend reads them (our layer: its cached dequantized copy), X and Y",
        "read": f"torch {read} over float32, same number of bytes, same rounds; fastest of {', '.join(Reader.METHODS)}",
        "backends": {backend.name: backend.about for backend in chosen},
    }
