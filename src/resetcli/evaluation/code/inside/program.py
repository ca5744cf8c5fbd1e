"""Runs the untrusted program in the worker: a whole script on standard input, or one function on JSON arguments.

Contest sites import the usual modules for a solution, and so does the benchmark's own runner; names that a program
uses without importing them (``List``, ``deque``, ``gcd``) are therefore there. They are set before the program starts,
so its own definitions win.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib
import io
import json
import os
import random
import re
import sys
import threading
import types
from typing import Any

STAR = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "typing",
)  # fmt: skip
MODULES = (*STAR, "io", "sys", "json")
RECURSION = 50_000

_names: dict[str, Any] = {}


def prepare(job: dict[str, Any]) -> None:
    """Import, once for all workers, what programs expect; numpy only if the program names it."""
    for name in STAR:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
        _names.update({n: getattr(module, n) for n in public if hasattr(module, n)})
    _names.update({name: importlib.import_module(name) for name in MODULES})
    # Modules above redefine some (operator.pow, math.pow ...); plain names mean the built-in ones.
    for name in [n for n in _names if hasattr(builtins, n)]:
        _names[name] = getattr(builtins, name)
    for name in ("numpy", "sortedcontainers"):
        if re.search(rf"\b{name}\b", job["code"]):
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def run(job: dict[str, Any], report: int) -> int:
    """Run the program on what stands at file descriptor 0; the exit code. Its own account goes to ``report``."""
    for place, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = open(place, mode, closefd=False, encoding="utf-8", errors="replace")  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = ["solution.py"]
    sys.setrecursionlimit(RECURSION)
    random.seed(0)
    functional = job["kind"] == "functional"
    said: dict[str, str] = {}
    try:
        arguments = [json.loads(line) for line in sys.stdin.read().split("\n")] if functional else []
        module = types.ModuleType("solution" if functional else "__main__")
        sys.modules[module.__name__] = module
        vars(module).update(_names, __name__=module.__name__)
        code = compile(job["code"], "solution.py", "exec", dont_inherit=True)
        try:
            exec(code, vars(module))
            if functional:
                said["value"] = json.dumps(_function(module, job["function"])(*arguments), default=_plain)
        except SystemExit:
            if functional:
                said["error"] = "SystemExit"
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        getattr(atexit, "_run_exitfuncs", lambda: None)()
        _flush(module)
    except BaseException as exc:  # whatever an untrusted program raises is its result
        with contextlib.suppress(BaseException):
            _flush(module)
        said = {"error": type(exc).__name__}
    data = memoryview(json.dumps(said).encode())
    while data:
        data = data[os.write(report, data) :]
    return 1 if "error" in said else 0


def _flush(module: types.ModuleType) -> None:
    """As an interpreter does at its end: the standard streams, and files that the program left open in its globals."""
    left = [value for value in vars(module).values() if isinstance(value, io.IOBase)]
    for stream in (sys.stdout, sys.__stdout__, *left):
        if stream is not None:
            with contextlib.suppress(ValueError):  # closed or detached: nothing left in it
                stream.flush()


def _function(module: types.ModuleType, name: str) -> Any:
    """The method of that name of ``Solution``, or the plain function."""
    solution = getattr(module, "Solution", None)
    if solution is not None and hasattr(solution, name):
        return getattr(solution(), name)
    if callable(found := vars(module).get(name)) and found is not _names.get(name):
        return found
    raise NameError(f"no function {name}")


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as Python's; other values have no equal among the expected ones."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is no JSON value")
