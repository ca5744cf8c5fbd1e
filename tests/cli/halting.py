"""Commands that stop at a named place, so that a signal lands there and nowhere else.

The process stops itself (SIGSTOP) at a function inside the phase: a ``sitecustomize`` on PYTHONPATH, Python's own way
in, wraps that function. The test then sends its signal, which takes effect when the process goes on. All else is the
real command.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import command, environment

HOOK = """
import importlib.abc, importlib.util, os, signal, sys, time

module, _, name = os.environ["HALT_AT"].partition(":")
count, about = int(os.environ["HALT_COUNT"]), os.environ["HALT_ABOUT"]

def described(value):
    if isinstance(value, int) and os.path.exists(f"/proc/self/fd/{value}"):
        return os.readlink(f"/proc/self/fd/{value}")
    return str(value) if isinstance(value, (str, os.PathLike)) else ""

def wrap(owner):
    *outer, last = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    plain, calls = getattr(owner, last), []

    def halting(*args, **more):
        if about in " ".join(map(described, args)):
            calls.append(1)
            if len(calls) == count:
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(0.5)
        return plain(*args, **more)

    setattr(owner, last, halting)

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname != module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        run = spec.loader.exec_module

        def exec_module(made):
            run(made)
            wrap(made)

        spec.loader.exec_module = exec_module
        return spec

if module in sys.modules:
    wrap(sys.modules[module])
else:
    sys.meta_path.insert(0, Finder())
"""
"""Before the n-th call of HALT_AT whose arguments name a file with HALT_ABOUT in its path, the process stops itself.

A signal sent to a stopped process goes to whichever thread runs first when it goes on; Python acts on it in the main
thread only, which therefore sleeps long enough for another one to have received it.
"""


def halted_processes(hook: Path) -> Iterator:
    """The generator behind the fixture ``halted``; ``hook`` is an empty folder."""
    (hook / "sitecustomize.py").write_text(HOOK)
    running = []

    def begin(args: tuple, cwd: Path, place: str, count: int = 1, about: str = "") -> subprocess.Popen:
        env = environment(PYTHONPATH=str(hook), HALT_AT=place, HALT_COUNT=str(count), HALT_ABOUT=about)
        process = subprocess.Popen(
            command(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=cwd
        )
        running.append(process)
        found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if found.si_code != os.CLD_STOPPED:
            pytest.fail(f"it ended before {place}: {process.communicate()}")
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
            process.communicate()


def interrupt(process: subprocess.Popen) -> tuple[str, str]:
    """Ctrl-C to a halted process: delivered when it goes on. Its output; it must end as an interrupted command."""
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert [line for line in err.splitlines() if line.startswith("error: ")] == ["error: interrupted"], err
    assert err.endswith("error: interrupted\n") and "Traceback" not in err
    return out, err
