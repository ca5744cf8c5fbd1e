"""The fastest way to read as many bytes as a weight has (kernels/read.cu): what products are compared with.

Which way is fastest depends on the size, so each is tried once a size, by few replays, and the best with and without
programmatic dependent launch is timed again among the products. Bytes are random and of their own, in as many copies
as the products' weights have, so that the rotation is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from resetcli.base.errors import ResetError
from resetcli.cuda.build import Build, architecture_number
from resetcli.cuda.timing import Thunk, time_quick

PIECE = 1024
"""Bytes that sizes are rounded up to."""
_BUILD = Build("read.cu")
_BULK_SHARED = 12 * 16 * PIECE
Variant = tuple[str, int, int, int]
"""Kernel, CTAs a multiprocessor, threads, dynamic shared memory."""


def builds(arch: str) -> list[Build]:
    """All compilations."""
    return [_BUILD] if architecture_number(arch) >= 80 else []


def variants(arch: str) -> list[Variant]:
    """The ways to try, as many bytes in flight as memory and registers allow in each of several shapes."""
    found = [
        ("read_stream4", 8, 256, 0), ("read_stream4", 4, 512, 0), ("read_stream8", 4, 256, 0),
        ("read_registers2", 3, 512, 0), ("read_registers3", 8, 128, 0), ("read_registers4", 4, 256, 0),
        ("read_registers6", 2, 256, 0),
    ]  # fmt: skip
    rings = [(4, 3, 256), (6, 1, 512), (8, 1, 512), (8, 2, 256), (12, 1, 512), (12, 4, 128)]
    most = {"sm_80": 163, "sm_90a": 227, "sm_100a": 227}.get(arch, 99) * PIECE
    for stages, ctas, threads in rings:
        shared = threads // 32 * stages * PIECE
        if shared * ctas <= most:
            found.append((f"read_ring{stages}", ctas, threads, shared))
    if architecture_number(arch) >= 90 and most >= _BULK_SHARED:
        found.append(("read_bulk", 1, 128, _BULK_SHARED))
    return found


class ReadKernels:
    """Reads of ``size`` bytes from each of ``copies`` places in memory of their own on ``device``."""

    def __init__(self, size: int, copies: int, device: torch.device, multiprocessors: int, arch: str):
        self.pieces = -(-size // PIECE)
        self.multiprocessors, self.arch = multiprocessors, arch
        self.buffer = torch.randint(0, 256, (copies, self.pieces * PIECE), dtype=torch.uint8, device=device)
        self.out = torch.zeros(1, dtype=torch.int32, device=device)
        self.best: dict[bool, Variant] = {}
        self.microseconds: dict[str, float] = {}

    def choose(self, side: torch.cuda.Stream) -> None:
        """Try all ways, without and with programmatic dependent launch; ``best`` has the fastest of each.

        Raises:
            ResetError: not one runs.
        """
        from resetcli.cuda.launch import launch

        overlaps = (False, True) if architecture_number(self.arch) >= 90 else (False,)
        fault = "no kernel of read.cu is for this GPU"
        for overlap in overlaps:
            times: dict[Variant, float] = {}
            for variant in variants(self.arch):
                try:
                    calls = self._thunks(variant, overlap, launch)
                    calls[0]()
                    times[variant] = time_quick(calls, side=side)
                except (ResetError, RuntimeError) as exc:
                    fault = str(exc)
            if not times:
                raise ResetError(f"the read ceiling cannot be measured: {fault}")
            self.best[overlap] = min(times, key=lambda variant: times[variant])
            self.microseconds |= {f"{label(v)}{' pdl' * overlap}": t * 1e6 for v, t in times.items()}

    def thunks(self, overlap: bool) -> list[Thunk]:
        """A call a copy, by the best way."""
        from resetcli.cuda.launch import launch

        return self._thunks(self.best[overlap], overlap, launch)

    def _thunks(self, variant: Variant, overlap: bool, launch: Callable[..., Any]) -> list[Thunk]:
        from resetcli.cuda.launch import load

        name, ctas, threads, shared = variant
        function = load(_BUILD, self.buffer.device).function(name, shared)
        return [
            partial(launch, function, ctas * self.multiprocessors, threads, (copy, self.out, self.pieces),
                    shared=shared, pdl=overlap)
            for copy in self.buffer
        ]  # fmt: skip


def label(variant: Variant) -> str:
    """ "read_ring8 1x512": kernel, CTAs a multiprocessor and threads."""
    name, ctas, threads, _ = variant
    return f"{name} {ctas}x{threads}"
