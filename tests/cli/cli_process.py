"""Running the command line as a user does: a process of its own, pipes for input and output."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass


@dataclass
class Ran:
    """One finished command."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The last line on standard error, which must be the only one that begins with ``error: ``."""
        lines = self.err.splitlines()
        assert [line for line in lines if line.startswith("error: ")] == lines[-1:], self.err
        return lines[-1]


def command(*args: object) -> list[str]:
    """The command line of this very installation."""
    return [sys.executable, "-m", "resetcli", *(os.fsdecode(a) if isinstance(a, bytes) else str(a) for a in args)]


def environment(**more: str) -> dict[str, str]:
    """Without what a user's shell may set for resetcli, and one thread, since test machines are small."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RESET_") or k == "RESET_CACHE"}
    return {**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}
