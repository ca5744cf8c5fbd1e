"""Compiling what a run of the bench will need, several processes at once, before any clock runs.

NVRTC compiles one program at a time in a process, and a kernel that is compiled when it is first called would stall a
measurement for seconds. Processes are started anew (no fork of a process with a CUDA context) and fill the cache.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import resetcli
from resetcli.base.reporting import Reporter
from resetcli.cuda import activations as acts
from resetcli.cuda import readers
from resetcli.cuda.build import Build
from resetcli.cuda.families import families
from resetcli.cuda.families.gemv import _BF16, _HALF2, _INT8, MAX_TOKENS, Gemv

_SCRIPT = (
    "import json, sys\n"
    "from resetcli.cuda.build import Build, build\n"
    "arch, builds = json.load(sys.stdin)\n"
    "for source, defines in builds:\n"
    "    build(Build(source, tuple((key, value) for key, value in defines)), arch)\n"
)


def needed(arch: str, ms: Sequence[int], ks: Sequence[int], activations: Collection[str] = ("w4a4",)) -> list[Build]:
    """Compilations for products of ``ms`` rows and these K, quantization and read-only kernels included: for W4A4, and
    with "w4a16" among ``activations`` for X in bfloat16 as well."""
    narrow = any(k % 32 for k in ks)
    wide = "w4a16" in activations
    arithmetics = {_INT8, _HALF2, _BF16} if wide else {_INT8, _HALF2}

    def wanted(build: Build) -> bool:
        macros = dict(build.defines)
        if build.source == "gemv.cu":
            # One token as well: with C1 off it runs for each token.
            right = macros["ARITH"] in arithmetics and macros["TOKENS"] in {1, *ms}
        elif build.source in ("mma.cu", "wide.cu"):
            right = wide or macros["X_BF16"] == 0  # W4A4 multiplies in float16
        else:
            right = True
        return right and (narrow or macros.get("VEC") != 1)

    found = [build for family in families() for build in family.builds(arch) if wanted(build)]
    small = [m for m in ms if m <= MAX_TOKENS] if found else []
    staged = [Gemv._build(_INT8, m, 2, stage=True) for m in small]  # the ablation's
    return list(dict.fromkeys([*found, *staged, *acts.builds(arch), *readers.builds(arch)]))


def precompile(builds: Sequence[Build], arch: str, *, processes: int | None = None, reporter: Reporter) -> None:
    """Fill the cache; what does not compile is told to ``reporter`` and fails again, by name, where it is used."""
    count = max(1, min(processes or os.cpu_count() or 1, len(builds)))
    # The children shall import this very package, however it got onto our own path.
    paths = [str(Path(resetcli.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    running = []
    with reporter.phase("compile", total=count) as advance:
        for start in range(count):
            part: list[Any] = [[build.source, list(build.defines)] for build in builds[start::count]]
            process = subprocess.Popen(
                [sys.executable, "-c", _SCRIPT],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                env=environment,
            )  # fmt: skip
            assert process.stdin is not None
            process.stdin.write(json.dumps([arch, part]))
            process.stdin.close()
            process.stdin = None
            running.append(process)
        for process in running:
            _, errors = process.communicate()
            if process.returncode:
                lines = (errors or "").strip().splitlines() or [f"exit status {process.returncode}"]
                reporter.warn(f"a compilation failed: {lines[-1]}")
            advance(1)
