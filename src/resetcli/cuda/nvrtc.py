"""CUDA C++ to machine code through NVRTC, by ctypes.

CuPy can compile too, but hides the compiler's log, wants a GPU to name the architecture, and brings include folders
of its own; here NVRTC is called directly, so that a machine without a GPU (CI) compiles every kernel for every
architecture and reads ptxas' report of registers and spills. The library comes with a pip wheel, a CUDA toolkit, or
the loader's path, in that order. A compiler newer than the driver's major version is left out: its machine code
would not load.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from resetcli.base.errors import ResetError
from resetcli.cuda.driver import KernelsUnavailable, driver_version

OPTIONS = ("--std=c++17", "-default-device", "--ptxas-options=-v")


class NVRTCUnavailable(KernelsUnavailable):
    """No usable NVRTC; the message names the wheel that brings it."""


class CompileError(ResetError):
    """A kernel did not compile; the first error of the log is in the message, all of it in ``log``."""

    def __init__(self, message: str, log: str):
        super().__init__(message)
        self.log = log


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of one kernel: registers a thread, bytes of stack and of spills a thread, of static shared
    memory a block."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int


@dataclass(frozen=True)
class Compiled:
    """Machine code (or PTX), the compiler's log, and resources by kernel name; None if the compiler reports none."""

    cubin: bytes
    log: str
    resources: dict[str, Resources] | None


class Compiler:
    """One loaded NVRTC library; ``path`` is where it was found, ``version`` (major, minor)."""

    def __init__(self, path: str):
        self.path = path
        self._lib = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    @cached_property
    def architectures(self) -> tuple[int, ...]:
        """Compute capabilities (major * 10 + minor) that this NVRTC compiles for."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return tuple(found)

    def compile(
        self,
        source: str,
        name: str,
        *,
        arch: str,
        headers: Mapping[str, str] | None = None,
        defines: Mapping[str, str | int] | None = None,
    ) -> Compiled:
        """Compile ``source``: machine code for an ``arch`` like "sm_90a", PTX for one like "compute_100".

        Args:
            name: what the source is called in messages.
            headers: text of each file that ``#include "..."`` may name.
            defines: macros and their values.

        Raises:
            CompileError: the compiler refuses; the message holds its first error.
        """
        if int(re.sub(r"\D", "", arch)) not in self.architectures:
            version = ".".join(map(str, self.version))
            raise CompileError(f"NVRTC {version} does not know {arch}; install a newer one (12.8 knows Blackwell)", "")
        headers = headers or {}
        options = compile_options(arch, defines or {})
        program = ctypes.c_void_p()
        texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        names = (ctypes.c_char_p * len(headers))(*(key.encode() for key in headers))
        self._call(
            "nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(), len(headers), texts, names
        )
        try:
            array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._lib.nvrtcCompileProgram(program, len(options), array)
            log = self._bytes("nvrtcGetProgramLog", program).rstrip(b"\0").decode(errors="replace")
            if status:
                raise CompileError(
                    f"{name} does not compile for {arch}: {first_error(log, self._message(status))}", log
                )
            image = self._bytes("nvrtcGetPTX" if arch.startswith("compute_") else "nvrtcGetCUBIN", program)
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))
        return Compiled(image, log, parse_resources(log))

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(what, program, buffer)
        return buffer.raw

    def _call(self, name: str, *args: object) -> None:
        status = getattr(self._lib, name)(*args)
        if status:
            raise ResetError(f"{name} of {self.path} failed: {self._message(status)}")

    def _message(self, status: int) -> str:
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        return (self._lib.nvrtcGetErrorString(status) or b"unknown error").decode()


def compile_options(arch: str, defines: Mapping[str, str | int]) -> list[str]:
    """The options that a compilation for ``arch`` is run with, in order."""
    return [f"--gpu-architecture={arch}", *OPTIONS, *(f"-D{key}={value}" for key, value in defines.items())]


def compile_cubin(
    source: str, name: str, *, arch: str, headers: Mapping[str, str], defines: Mapping[str, str | int]
) -> Compiled:
    """``Compiler.compile`` by the compiler of this machine.

    Raises:
        NVRTCUnavailable: there is none.
        CompileError: it refuses the source.
    """
    return compiler().compile(source, name, arch=arch, headers=headers, defines=defines)


def first_error(log: str, otherwise: str) -> str:
    """The first line of a compiler's log that reports an error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if re.search(r"\berror\b", line)), lines[0] if lines else otherwise)


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for '?([^\s']+)'?")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_resources(log: str) -> dict[str, Resources] | None:
    """Resources by kernel name from ``ptxas -v`` lines; None if the log has none (device functions are left out)."""
    found: dict[str, Resources] = {}
    entry, stack = None, {}
    described = None
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = match[1]
        elif match := _PROPERTIES.search(line):
            described = match[1]
        if (match := _STACK.search(line)) and described is not None:
            stack[described] = (int(match[1]), int(match[2]), int(match[3]))
        if (match := _USED.search(line)) and entry is not None:
            shared = _SHARED.search(line)
            found[entry] = Resources(int(match[1]), *stack.get(entry, (0, 0, 0)), int(shared[1]) if shared else 0)
            entry = None
    return found or None


@lru_cache(maxsize=1)
def compiler() -> Compiler:
    """The NVRTC of this machine, newest first among the pip wheels, then a toolkit's, then the loader's.

    Raises:
        NVRTCUnavailable: none is found, or all are newer than the driver can load.
    """
    driver = driver_version()
    too_new, faults = None, []
    for path in candidates():
        try:
            found = Compiler(path)
        except (OSError, AttributeError, ResetError) as exc:
            if path not in _SONAMES:  # the loader not knowing a name is no fault
                faults.append(f"{path} is unusable ({exc}); ")
            continue
        if driver is None or found.version[0] <= driver[0]:
            return found
        too_new = found
    install = f"pip install '{extra(driver)}'"
    if too_new is not None and driver is not None:
        have, need = (".".join(map(str, version)) for version in (too_new.version, driver))
        raise NVRTCUnavailable(f"NVRTC {have} makes code that this driver (CUDA {need}) cannot load; {install}")
    raise NVRTCUnavailable(f"{''.join(faults[:1])}the CUDA run-time compiler NVRTC is not here; {install}")


def extra(driver: tuple[int, int] | None) -> str:
    """The extra of this package that brings CuPy and NVRTC for a driver."""
    return f"resetcli[cuda{12 if driver and driver[0] < 13 else 13}]"


_SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


def candidates() -> list[str]:
    """Paths and loader names to try, best first, without repeats."""
    found = [*_libraries(wheel_folders()), *_libraries(toolkit_folders()), *_SONAMES]
    return list(dict.fromkeys(found))


def wheel_folders() -> list[Path]:
    """Library folders of NVIDIA's pip wheels."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    return [folder for root in roots for folder in sorted(root.glob("*/lib")) if folder.is_dir()]


def toolkit_folders() -> list[Path]:
    """Library folders of the toolkit that CUDA_PATH or CUDA_HOME names."""
    roots = [Path(value) for key in ("CUDA_PATH", "CUDA_HOME") if (value := os.environ.get(key))]
    return [folder for root in roots for folder in (root / "lib64", root / "lib") if folder.is_dir()]


def _libraries(folders: Sequence[Path]) -> list[str]:
    files = [file for folder in folders for file in folder.glob("libnvrtc.so*")]
    return [
        str(file) for file in sorted(files, key=lambda f: [int(n) for n in re.findall(r"\d+", f.name)], reverse=True)
    ]
