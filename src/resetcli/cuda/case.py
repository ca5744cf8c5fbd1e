"""One shape of the bench: its operands in several copies, and the timed and checked rows of each M (see ``bench``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from resetcli.base.errors import ResetError
from resetcli.cuda.backends import BASELINE, Backend, Operand
from resetcli.cuda.kernel_backends import KernelBackend
from resetcli.cuda.problem import Problem, check, make_problem, row_error
from resetcli.cuda.shapes import BLOCK, Shape
from resetcli.cuda.timing import Candidate, Reader, reason, reuse_distance

COLD_MULTIPLE = {"cpu": 2.0, "cuda": 4.0}
"""Bytes wanted between two uses of the same weights, in last-level caches."""
MEMORY = {"cpu": 2.0e9, "cuda": 8.0e9}
ROUNDS = {"cpu": (3, 30), "cuda": (20, 200)}
"""Least and most timed rounds a row; the time budget decides between them."""


class Case:
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
                    config, calls = backend.alone(self.operands, n, k, x)
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
            if isinstance(backend, KernelBackend):
                row |= backend.describe(self.device, m, n, k, self.dtype)
            if backend.name not in alone:
                times = reads[candidate.bytes].seconds
                if times:
                    read = float(np.median(times))
                    row |= {"read_gb_s": candidate.bytes / read / 1e9, "of_read": read / median}
            else:
                config, product = alone[backend.name]
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
        tolerance = backend.tolerance_at(x.device, m, self.shape.n, self.shape.k, self.dtype)
        verdict = check(y, truth, size, slack, tolerance, backend.rounding)
        found = {"correct": verdict.correct, "error": verdict.worst if math.isfinite(verdict.worst) else None}
        if isinstance(backend, KernelBackend):
            error = row_error(y, truth, slack)
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
