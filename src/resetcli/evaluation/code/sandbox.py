"""Runs a program that nobody has read, on given inputs, and hands back what it printed.

One process a program confines itself (``inside/``) and forks a worker for each input; the expected outputs stay in this
process. A program that wants to pass therefore has to compute them: what it writes about itself is not believed.

Layers, each used where the kernel grants it and reported by `containment` where not:

- always: CPU, wall-clock, memory, file-size, open-file and output limits; an empty environment; a folder of its own
  that is emptied after each input; standard error thrown away.
- seccomp (Linux on x86_64; the table for aarch64 has not been run): no new process or program, no socket, no signal,
  no tracing, no mount, no change of a file's rights or times, no memory behind a file descriptor. Threads are allowed.
- Landlock (Linux 5.13 on): reads only the interpreter, its packages and the system's libraries, writes only its folder.
- namespaces: own process ids, no network at all, own IPC; a file system of its own in which the same libraries are
  read-only, the folder is in memory with limited room, and nothing else is there.
- from root: another user id, and no capabilities in any case.

What it does not stop:

- faults of the kernel itself, and what a program learns from time, the processor or the machine's name;
- reading the installed Python packages (one of yours that holds secrets is readable);
- using a whole core, and memory up to the limit, until the time is up;
- without namespaces and Landlock: reading and writing whatever this user can;
- without seccomp and namespaces: the network, signals to this user's processes, further processes;
- without seccomp: memory past the limit, behind a file descriptor (memfd_create);
- without a file system of its own: filling the disk, since the limit is then on each file and not on their number;
- without another user id or namespaces: threads, as far as the memory limit goes.

A kill -9 of this process ends the program as well; without a file system of its own, a folder ``reset-sandbox-*`` is
then left in the system's temporary one.

It is made for programs of a language model, which go wrong far more often than they attack. For an adversary's
programs use a virtual machine.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from resetcli.base.errors import ResetError

LAYERS = ("namespaces", "files", "landlock", "seccomp")
"""Layers that can be asked for; the rest is always there."""

Status = Literal["ok", "error", "time", "memory", "output"]


@dataclass(frozen=True)
class Limits:
    """Of each input: ``cpu`` seconds of processor time, ``wall`` seconds at most, bytes of ``memory`` and ``output``,
    ``room`` bytes for files, ``threads``."""

    cpu: int = 6
    wall: float = 18.0
    memory: int = 4 << 30
    output: int = 64 << 20
    room: int = 64 << 20
    threads: int = 64


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``output`` (what was printed, or the function's value as JSON) counts only if "ok"."""

    status: Status
    detail: str
    output: bytes
    cpu: float


class SandboxError(ResetError):
    """The sandbox itself failed, which says nothing about the program."""


class Sandbox:
    """One program, ready to run on inputs. Use as a context manager.

    Args:
        code: Python source.
        function: name of the function to call with JSON arguments, one a line; None runs the program on standard input.
        limits: of each input.
        layers: which of ``LAYERS`` to ask for.

    Raises:
        SandboxError: the interpreter does not start.
    """

    def __init__(
        self,
        code: str,
        function: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
        layers: tuple[str, ...] = LAYERS,
    ):
        self._limits = limits
        # Its own folder under the short system one: a socket or a program may not see our longer paths.
        self._anchor = tempfile.mkdtemp(prefix="reset-sandbox-")
        environment = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1",
                       "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # fmt: skip
        if "LD_LIBRARY_PATH" in os.environ:  # some interpreters find libpython by it; emptied before a program runs
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-s", str(Path(__file__).parent / "inside")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
                cwd="/", start_new_session=True,
            )  # fmt: skip
        except OSError as exc:
            shutil.rmtree(self._anchor, ignore_errors=True)
            raise SandboxError(f"cannot start the sandbox: {exc.strerror or exc}") from exc
        job = {
            "code": code, "kind": "stdin" if function is None else "functional", "function": function,
            "anchor": self._anchor, "layers": list(layers), "cpu": limits.cpu, "wall": limits.wall,
            "memory": limits.memory, "output": limits.output, "room": limits.room, "threads": limits.threads,
        }  # fmt: skip
        try:
            reply = self._exchange(json.dumps(job).encode() + b"\n", 60.0)
        except BaseException:
            self.close()
            raise
        if reply is None or reply["layers"] is None:
            self.close()
            raise SandboxError("the sandbox for programs does not start here; see docs/livecodebench.md")
        self.layers: dict[str, Any] = reply["layers"]
        if self.layers.get("files") is True:  # the folder was a place to mount on; a kill -9 of ours leaves nothing now
            shutil.rmtree(self._anchor, ignore_errors=True)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(self, data: str) -> Outcome:
        """The program's outcome on one input.

        Raises:
            SandboxError: the sandbox ended or could not begin.
        """
        raw = data.encode("utf-8", "replace")
        reply = self._exchange(json.dumps({"bytes": len(raw)}).encode() + b"\n" + raw, self._limits.wall + 30.0)
        if reply is None or reply["status"] == "broken":
            raise SandboxError("the sandbox for programs ended unexpectedly; is the machine out of memory?")
        return Outcome(reply["status"], reply["detail"], reply["output"], reply["cpu"])

    def _exchange(self, message: bytes, seconds: float) -> dict[str, Any] | None:
        """Send, and read the reply; None if the process ends or ``seconds`` are over."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        watch = threading.Timer(seconds, self._kill)
        watch.daemon = True
        watch.start()
        try:
            process.stdin.write(message)
            process.stdin.flush()
            reply = json.loads(process.stdout.readline() or b"null")
            if reply is not None and "bytes" in reply:
                reply["output"] = process.stdout.read(reply["bytes"])
                if len(reply["output"]) != reply["bytes"]:
                    return None
            return reply
        except (BrokenPipeError, ValueError):
            return None
        finally:
            watch.cancel()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End everything and remove the folder."""
        self._kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()
        shutil.rmtree(self._anchor, ignore_errors=True)


@dataclass(frozen=True)
class Containment:
    """What holds on this machine: layer -> True, or why not."""

    layers: dict[str, Any]

    @property
    def missing(self) -> dict[str, str]:
        """What does not hold, with the reason."""
        return {name: str(value) for name, value in self.layers.items() if value is not True}

    @property
    def gaps(self) -> list[str]:
        """What a program can therefore do, in words; empty where it is contained."""
        holds = {name for name, value in self.layers.items() if value is True}
        gaps = []
        if not holds & {"seccomp", "namespaces"}:
            gaps += ["use the network", "signal other processes of this user", "start further processes"]
        if not holds & {"landlock", "files"}:
            gaps.append("read and write this user's files")
        if "seccomp" not in holds:
            gaps.append("take more memory than the limit")
        if "files" not in holds:
            gaps.append("fill the disk")
        return gaps


@functools.cache
def containment() -> Containment:
    """Start an empty sandbox once and see what it gets.

    Raises:
        SandboxError: it does not start.
    """
    with Sandbox("") as box:
        return Containment({"namespaces": "not asked", "files": "no own mounts", **box.layers})
