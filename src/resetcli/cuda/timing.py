"""Times of calls on cold weights, all candidates interleaved.

Weights are read once a token, so a kernel in real decoding never finds them in cache. Each candidate therefore has
several copies of its operands and each call takes the next; ``reuse_distance`` works out how many bytes lie between
two uses of the same copy. Candidates and read-only passes alternate call by call, so that a busy neighbour slows
all of them alike and ratios stay meaningful; medians and quartiles are kept, never means.

On CUDA a call costs 14 to 17 us of Python, more than the kernel: one graph holds a whole rotation and is replayed
between two events.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

Thunk = Callable[[], Any]

GRAPH_CALLS = 24
"""Least number of calls in a CUDA graph."""


@dataclass
class Candidate:
    """Something to time: one thunk a copy, the bytes a call reads, and for each thunk a name of the memory it reads.

    No names: memory whose reuse does not matter.
    """

    name: str
    thunks: Sequence[Thunk]
    bytes: int
    memory: Sequence[str]
    seconds: list[float] = field(default_factory=list)


def reuse_distance(candidates: Sequence[Candidate], *, grouped: bool = False) -> int:
    """Least number of bytes read from one use of a byte to its next, in the order in which calls are made.

    ``grouped``: a candidate's calls run back to back, copy after copy and round again (a CUDA graph holds them),
    else candidates alternate call by call. 0 if nothing is used twice.
    """
    if grouped:
        order = [(i, c) for _ in range(2) for c in candidates for i in range(2 * max(1, len(c.memory)))]
    else:
        rounds = 2 * max(len(candidate.memory) for candidate in candidates) + 1
        order = list(itertools.product(range(rounds), candidates))
    last: dict[str, int] = {}
    position, gaps = 0, []
    for i, candidate in order:
        if candidate.memory:
            memory = candidate.memory[i % len(candidate.memory)]
            if memory in last:
                gaps.append(position - last[memory])
            last[memory] = position
        position += candidate.bytes
    return min(gaps, default=0)


def time_cpu(candidates: Sequence[Candidate], *, seconds: float, least: int, most: int, warmup: int = 1) -> None:
    """Fill ``candidate.seconds``: rounds of one call each: ``least`` to ``most``, by ``seconds`` in between."""
    for i, candidate in itertools.product(range(warmup), candidates):
        candidate.thunks[i % len(candidate.thunks)]()
    end = time.perf_counter() + seconds
    for i in itertools.count(warmup):
        if i - warmup >= most or (i - warmup >= least and time.perf_counter() >= end):
            return
        for candidate in candidates:
            thunk = candidate.thunks[i % len(candidate.thunks)]
            start = time.perf_counter()
            thunk()
            candidate.seconds.append(time.perf_counter() - start)


def time_cuda(
    candidates: Sequence[Candidate], *, seconds: float, least: int, most: int, warmup: int = 1,
    failed: dict[str, str] | None = None,
) -> None:  # fmt: skip
    """As ``time_cpu`` on the current CUDA device; a time is a replay's over the calls in it.

    A candidate's graph goes through all its copies, several times if they are few, since starting a graph takes
    as long as a small call. Replays of the candidates alternate, in another order each round: what ran before a
    candidate costs or spares it some per cent.

    Args:
        failed: where given, a candidate that cannot run is entered there with the reason and gets no times; else its
            exception goes on.
    """
    graphs = []
    side = torch.cuda.Stream()
    for candidate in candidates:
        turns = -(-GRAPH_CALLS // len(candidate.thunks))
        try:
            graphs.append((candidate, *capture([*candidate.thunks] * turns, side, len(candidate.thunks))))
        except Exception as exc:  # whatever a backend raises: the others shall be timed all the same
            if failed is None:
                raise
            failed[candidate.name] = reason(exc)
    for _, graph, _ in graphs * warmup:
        graph.replay()
    torch.cuda.synchronize()
    end = time.perf_counter() + seconds
    shuffle = random.Random(0).shuffle
    for i in itertools.count():
        if i >= most or (i >= least and time.perf_counter() >= end):
            return
        shuffle(graphs)
        for candidate, graph, kept in graphs:
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            candidate.seconds.append(start.elapsed_time(stop) / 1000 / len(kept))


def capture(thunks: Sequence[Thunk], side: torch.cuda.Stream, eager: int) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
    """A graph of ``thunks`` one after the other, and what they returned, which must outlive the graph.

    The first ``eager`` of them run once before, on ``side``: lazy allocations and library handles settle there.
    ``torch.cuda.graph`` would collect garbage and empty the allocator's cache each time, which for hundreds of small
    graphs takes longer than the replays.
    """
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for thunk in thunks[:eager]:
            thunk()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        try:
            kept = [thunk() for thunk in thunks]
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    return graph, kept


def time_quick(thunks: Sequence[Thunk], *, side: torch.cuda.Stream, replays: int = 3) -> float:
    """Median seconds a call of a few replays of one graph: to choose by, not to report. ``thunks`` ran before."""
    turns = -(-GRAPH_CALLS // len(thunks))
    graph, kept = capture([*thunks] * turns, side, 1)
    graph.replay()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(replays)]
    for start, stop in pairs:
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(stop) for start, stop in pairs) / 1000 / len(kept)


def reason(exc: BaseException) -> str:
    """An exception in one line that is not too long."""
    lines = str(exc).strip().splitlines()
    return lines[0][:200] if lines else type(exc).__name__


def last_level_cache(device: torch.device) -> int:
    """Bytes of the device's last-level cache; 32 MiB where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = []
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            text = (entry / "size").read_text().strip()
            sizes.append(int(text.rstrip("KMG")) * {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1], 1))
        except (OSError, ValueError):
            continue
    return max(sizes, default=32 * 2**20)


class Reader:
    """Read-only passes over a buffer of its own: the measured memory bandwidth that shares refer to.

    The pass is the fastest of three torch reductions over float32 (sum, maximum, dot with itself), chosen once by
    ``choose``; each pass continues where the last ended and wraps around.
    """

    METHODS: ClassVar[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
        "sum": torch.sum, "amax": torch.amax, "dot": lambda part: torch.dot(part, part),
    }  # fmt: skip

    def __init__(self, size: int, device: torch.device):
        self.buffer = torch.ones(max(1, size // 4), dtype=torch.float32, device=device)
        self.method = "sum"
        self.place = 0

    def windows(self, size: int, count: int) -> list[list[torch.Tensor]]:
        """``count`` successive stretches of ``size`` bytes, each as one or more views of the buffer."""
        found = []
        for _ in range(count):
            left, views = max(1, size // 4), []
            while left:
                part = min(left, self.buffer.numel() - self.place)
                views.append(self.buffer[self.place : self.place + part])
                self.place = (self.place + part) % self.buffer.numel()
                left -= part
            found.append(views)
        return found

    def thunk(self, views: list[torch.Tensor]) -> Thunk:
        """A call that reads ``views`` once."""
        reduce = self.METHODS[self.method]
        return lambda: [reduce(view) for view in views]

    def choose(self, time_all: Callable[..., None], *, rounds: int = 3) -> dict[str, float]:
        """Pick the fastest method over the whole buffer; returns {method: best bytes/s}."""
        size = self.buffer.numel() * 4
        rates = {}
        for name in self.METHODS:
            self.method = name
            candidate = Candidate(name, [self.thunk([self.buffer])], size, ["buffer"])
            time_all([candidate], seconds=0.0, least=rounds, most=rounds)
            rates[name] = size / min(candidate.seconds)
        self.method = max(rates, key=lambda name: rates[name])
        return rates
