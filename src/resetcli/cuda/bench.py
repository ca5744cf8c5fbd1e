"""``reset bench-kernels``: small-M products on cold weights, checked against float64 in the same run.

For each shape the backends' operands are loaded in several copies, each M is timed on them with candidates and
read-only passes interleaved (``timing``), and each output is compared with float64 (``problem``). A backend that is
wrong is reported as wrong and makes the whole run fail: a fast wrong kernel is not a result.

Shares of bandwidth are relative to what this machine reads in this run, not to a data sheet. On a GPU a kernel's share
is that of the product alone (X quantized before, no overlap of launches) over the fastest read-only kernel of the same
weight and scale bytes (``readers``), in the same rounds; its time is that of everything on. A backend that fails there
is listed with the reason and the others go on. On a CPU our layer multiplies the dequantized copy that it caches, so
its bytes are that copy's, and 4 bits save memory on disk only; the figure says what the CPU path costs, not what NVFP4
can do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import Reporter
from resetcli.base.versions import versions
from resetcli.cuda import kernel_backends, peers
from resetcli.cuda.backends import Backend, backends
from resetcli.cuda.case import COLD_MULTIPLE, MEMORY, ROUNDS, Case
from resetcli.cuda.machine import describe_machine
from resetcli.cuda.shapes import PAPER, Shape
from resetcli.cuda.summary import summarize
from resetcli.cuda.timing import Reader, last_level_cache, reason, time_cpu, time_cuda

kernel_backends.register_all()
peers.register_all()

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
                case = Case(shape, ms, chosen, where, dtype, seed + index, memory, cache, skipped)
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
        "order": "backends and read-only passes alternate within each round; on a GPU in another order each round",
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
