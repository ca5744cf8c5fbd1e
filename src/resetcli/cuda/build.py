"""Kernels as files: which source and macros, for which architecture, compiled once and kept in the user's cache.

A cache entry is named by the SHA-256 of everything that decides its bytes: source, headers, options, architecture,
NVRTC's version and ours. Beside it lies a JSON report with the code's own SHA-256, so that an entry cut short or
altered is rebuilt, not loaded, and the resources of a kernel are known without compiling again. Two processes that
build the same entry at once each write it whole; the later rename wins.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import resetcli
from resetcli.base.errors import ResetError
from resetcli.base.files import cache_dir, sha256_file, write_bytes, write_json
from resetcli.cuda.nvrtc import Compiled, Compiler, Resources, compile_options, compiler

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
"""Architectures that get machine code, and that CI compiles for."""

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Build:
    """One compilation: a file of the kernels' folder and the macros that make a variant of it."""

    source: str
    defines: tuple[tuple[str, int | str], ...] = ()

    def __str__(self) -> str:
        macros = ",".join(f"{key}={value}" for key, value in self.defines)
        return f"{self.source}[{macros}]" if macros else self.source


def kernels_folder() -> Path:
    """The folder of CUDA sources: inside the package in a wheel, beside ``src`` in a checkout.

    Raises:
        ResetError: neither is there.
    """
    package = Path(resetcli.__file__).resolve().parent
    for folder in (package / "kernels", package.parents[1] / "kernels"):
        if folder.is_dir():
            return folder
    raise ResetError(f"the CUDA sources are missing from {package}; install resetcli again")


def architecture(capability: tuple[int, int]) -> str:
    """What to compile for on a GPU of that compute capability: "sm_90a" and so on, or "compute_XX" (PTX, which the
    driver finishes) with the nearest lower generic architecture where we know no better.

    Raises:
        ResetError: older than sm_80.
    """
    known = {architecture_number(arch): arch for arch in ARCHITECTURES}
    number = capability[0] * 10 + capability[1]
    if number in known:
        return known[number]
    lower = [other for other in known if other < number]
    if not lower:
        raise ResetError(f"the kernels need a GPU of compute capability 8.0 or more; this one has {number / 10:.1f}")
    return f"compute_{max(lower)}"


def architecture_number(arch: str) -> int:
    """Compute capability times ten of an architecture's name: 90 of "sm_90a", 100 of "compute_100"."""
    return int(re.sub(r"\D", "", arch))


def read_sources(build: Build) -> tuple[str, dict[str, str]]:
    """Text of a build's source, and of each header that it includes, directly or not.

    Raises:
        ResetError: a file is missing.
    """
    return _read_sources(build.source, kernels_folder())


@lru_cache(maxsize=64)
def _read_sources(source: str, folder: Path) -> tuple[str, dict[str, str]]:
    headers: dict[str, str] = {}
    text = _text(folder / source)
    queue = [text]
    while queue:
        for name in _INCLUDE.findall(queue.pop()):
            if name not in headers:
                headers[name] = _text(folder / name)
                queue.append(headers[name])
    return text, headers


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise ResetError(f"CUDA source {path} cannot be read ({exc.strerror}); install resetcli again") from exc


def cache_key(build: Build, arch: str, version: tuple[int, int]) -> str:
    """Hex SHA-256 of all that decides the machine code, ``version`` being NVRTC's."""
    text, headers = read_sources(build)
    parts = [build.source, text, headers, compile_options(arch, dict(build.defines)), version, resetcli.__version__]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def build(what: Build, arch: str) -> Path:
    """Path of the compiled kernel in the user's cache, compiled now if it is not there or damaged.

    Raises:
        NVRTCUnavailable: nothing to compile with (its version is part of an entry's name).
        CompileError: the source does not compile for ``arch``.
    """
    return _built(what, arch)[0]


def resources(what: Build, arch: str) -> dict[str, Resources] | None:
    """Registers, stack, spills and shared memory of each kernel of a build; None if this NVRTC does not report them."""
    return _built(what, arch)[1]


def compile_build(what: Build, arch: str, using: Compiler | None = None) -> Compiled:
    """Compile without the cache."""
    text, headers = read_sources(what)
    using = using or compiler()
    return using.compile(text, what.source, arch=arch, headers=headers, defines=dict(what.defines))


def _built(what: Build, arch: str) -> tuple[Path, dict[str, Resources] | None]:
    using = compiler()
    key = cache_key(what, arch, using.version)
    path = cache_dir() / "kernels" / f"{key}.{'ptx' if arch.startswith('compute_') else 'cubin'}"
    report = path.with_suffix(".json")
    found = _read_report(path, report)
    if found is None:
        compiled = compile_build(what, arch, using)
        write_bytes(path, compiled.cubin)
        names = compiled.resources
        write_json(
            report,
            {
                "build": str(what),
                "arch": arch,
                "nvrtc": ".".join(map(str, using.version)),
                "sha256": hashlib.sha256(compiled.cubin).hexdigest(),
                "resources": names and {name: vars(value) for name, value in names.items()},
            },
        )
        return path, names
    names = found["resources"]
    return path, names and {name: Resources(**value) for name, value in names.items()}


def _read_report(path: Path, report: Path) -> dict | None:
    """The report of a whole cache entry, None if there is none."""
    try:
        found = json.loads(report.read_text(encoding="utf-8"))
        return found if found["sha256"] == sha256_file(path) and "resources" in found else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
