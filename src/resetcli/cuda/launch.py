"""Loading kernels through CuPy and launching them on torch's stream.

CuPy's RawModule loads the compiled file; the launch itself is cuLaunchKernelEx, since CuPy's has neither programmatic
dependent launch nor clusters. An eager launch costs the host some microseconds, so nothing is built anew that can be
kept: arguments are written by one ``struct.pack_into`` into a buffer whose slots the driver already points to, one
buffer a signature and thread, and configurations are kept per geometry. Launches take pointers as they are and
allocate nothing, so they can be captured in a CUDA graph; loading cannot, hence "load before you capture".
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from resetcli.base.errors import ResetError
from resetcli.cuda import driver
from resetcli.cuda.build import Build, architecture, build
from resetcli.cuda.nvrtc import extra

_FREE_SHARED = 48 * 1024
"""Dynamic shared memory that a kernel may use without asking."""


class Function:
    """A loaded kernel: ``handle`` (CUfunction), its device's index, registers and local bytes a thread."""

    def __init__(self, module: Module, name: str, shared_bytes: int):
        self.module = module  # unloading it would leave the handle dangling
        self.name = name
        self.device = module.device
        with _OnDevice(self.device):
            try:
                # CuPy loads the file here, on its own current device.
                self.handle = int(module.raw.get_function(name).kernel.ptr)
            except Exception as exc:  # CuPy's own error types, which need CuPy to name
                where = torch.cuda.get_device_name(self.device)
                raise ResetError(f"kernel {name} of {module.build} cannot be loaded on {where}: {exc}") from exc
            driver.load_function(self.handle, name)
            if shared_bytes > _FREE_SHARED:
                driver.allow_shared(self.handle, shared_bytes, name)
            self.registers, self.local_bytes = driver.function_attributes(self.handle)
            self.context = driver.current_context()

    def occupancy(self, threads: int, shared: int = 0) -> int:
        """Blocks of ``threads`` with ``shared`` bytes of dynamic shared memory that a multiprocessor holds at once."""
        with _OnDevice(self.device):
            return driver.occupancy(self.handle, threads, shared)


class Module:
    """A compiled file loaded on one device; ``function`` hands out its kernels."""

    def __init__(self, what: Build, device: int):
        self.build = what
        self.device = device
        cupy = import_cupy()
        self.raw = cupy.RawModule(path=str(compiled_path(what, device)))
        self._functions: dict[tuple[str, int], Function] = {}
        self._allowed: dict[str, int] = {}

    def function(self, name: str, shared_bytes: int = 0) -> Function:
        """The kernel ``name``, allowed ``shared_bytes`` of dynamic shared memory a block."""
        key = (name, shared_bytes)
        if (found := self._functions.get(key)) is None:
            _refuse_capture(f"kernel {name} of {self.build}")
            # The allowance belongs to the kernel, not to this request: a later, smaller one must not take it away.
            self._allowed[name] = max(shared_bytes, self._allowed.get(name, 0))
            found = self._functions[key] = Function(self, name, self._allowed[name])
        return found


class _OnDevice:
    """torch's and CuPy's current device for a while. Each keeps its own, so the driver's context is put back by hand:
    whatever CuPy leaves behind, torch finds what it had."""

    def __init__(self, device: int):
        self._torch = torch.cuda.device(device)
        self._cupy = import_cupy().cuda.Device(device)

    def __enter__(self) -> None:
        torch.cuda.init()
        self._before = driver.current_context()
        self._torch.__enter__()
        self._cupy.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._cupy.__exit__(*exc)
        self._torch.__exit__(*exc)
        if self._before is not None:
            driver.restore_context(self._before)


_modules: dict[tuple[Build, int], Module] = {}
_lock = threading.Lock()


def load(what: Build, device: torch.device | int | None = None) -> Module:
    """The module of ``what`` on a device (None: the current one), built and loaded at the first call.

    Raises:
        KernelsUnavailable: no driver, CuPy or NVRTC.
        ResetError: it does not compile or load, or a CUDA graph is being captured and it is not loaded yet.
    """
    index = device_index(device)
    if (found := _modules.get((what, index))) is not None:
        return found
    with _lock:
        if (found := _modules.get((what, index))) is None:
            _refuse_capture(str(what))
            found = _modules[what, index] = Module(what, index)
    return found


def _refuse_capture(what: str) -> None:
    if torch.cuda.is_current_stream_capturing():
        raise ResetError(f"{what} is not loaded yet and a CUDA graph is being captured; run the layer once before")


def device_index(device: torch.device | int | None) -> int:
    """Index of a CUDA device; the current one for None and for "cuda" without a number."""
    if isinstance(device, int):
        return device
    if device is not None and device.index is not None:
        return device.index
    return torch.cuda.current_device()


@lru_cache(maxsize=1)
def import_cupy() -> Any:
    """The module ``cupy``.

    Raises:
        KernelsUnavailable: it is not there, or not for this driver; with the install that mends it.
    """
    install = f"pip install '{extra(driver.driver_version())}'"
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()  # a CuPy for a newer CUDA than the driver's imports well and fails here
    except ModuleNotFoundError as exc:
        what = "CuPy is not installed" if exc.name == "cupy" else f"CuPy lacks the module {exc.name}"
        raise driver.KernelsUnavailable(f"{what}; {install}") from None
    except Exception as exc:  # a CuPy for another CUDA fails in many ways, some with types of its own
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
        raise driver.KernelsUnavailable(f"CuPy does not work here ({reason}); {install}") from exc
    return cupy


_CODES: dict[type, str] = {
    torch.Tensor: "Q", torch.nn.Parameter: "Q", type(None): "Q", bool: "i4x", int: "i4x", float: "f4x",
    np.int8: "b7x", np.uint8: "B7x", np.int16: "h6x", np.uint16: "H6x", np.float16: "e6x", np.int32: "i4x",
    np.uint32: "I4x", np.float32: "f4x", np.int64: "q", np.uint64: "Q", np.float64: "d",
}  # fmt: skip
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_ALIGN = 64


class _Packer:
    """Writes arguments of one signature into a buffer that ``parameters`` points into (a void* array for the driver).

    ``bytes`` arguments are structures passed by value (tensor maps), aligned to 64 bytes.
    """

    def __init__(self, types: tuple[Any, ...]):
        layout, offsets, at = "<", [], 0
        for kind in types:
            if isinstance(kind, int):  # a structure of that many bytes
                layout += f"{-at % _ALIGN}x"
                at += -at % _ALIGN
                offsets.append(at)
                size = -(-kind // 8) * 8
                layout += f"{kind}s{size - kind}x"
                at += size
            else:
                offsets.append(at)
                layout += _CODES[kind]
                at += 8
        self.struct = struct.Struct(layout)
        raw = ctypes.create_string_buffer(at + _ALIGN)
        self.start = -ctypes.addressof(raw) % _ALIGN
        self.buffer = raw
        self.offsets = tuple(offsets)
        base = ctypes.addressof(raw) + self.start
        self.pointers = (ctypes.c_void_p * max(1, len(types)))(*(base + offset for offset in offsets))
        self.parameters = ctypes.addressof(self.pointers)


@dataclass
class _Kept(threading.local):
    """What a thread keeps between launches."""

    packers: dict[tuple[Any, ...], _Packer] = field(default_factory=dict)
    configs: dict[tuple[Any, ...], tuple[driver.LaunchConfig, int]] = field(default_factory=dict)


_kept = _Kept()


def pack(args: Sequence[Any], device: int) -> _Packer:
    """The arguments in memory as a kernel takes them: tensors as pointers, int as int32, float as float32, NumPy
    scalars as they are, None as a null pointer, bytes by value.

    Raises:
        ResetError: a tensor that is not on ``device``, a type that no kernel takes, or an int beyond 32 bits.
    """
    types: list[Any] = []
    values: list[Any] = []
    for arg in args:
        kind: Any = type(arg)
        if kind in _TENSORS:
            if arg.get_device() != device:
                raise ResetError(f"a kernel on cuda:{device} was given a tensor on {arg.device}; move it there")
            values.append(arg.data_ptr())
        elif kind is bytes:
            kind = len(arg)
            values.append(arg)
        elif kind in _CODES:
            values.append(arg if arg is not None else 0)
        else:
            raise ResetError(f"a kernel was given a {kind.__name__}; it takes tensors, int, float and NumPy scalars")
        types.append(kind)
    signature = tuple(types)
    if (packer := _kept.packers.get(signature)) is None:
        packer = _kept.packers[signature] = _Packer(signature)
    try:
        packer.struct.pack_into(packer.buffer, packer.start, *values)
    except struct.error as exc:
        raise ResetError(f"a kernel argument is out of range ({exc}); pass np.int64 where 32 bits are too few") from exc
    return packer


def launch(
    function: Function,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    args: Sequence[Any],
    *,
    shared: int = 0,
    pdl: bool = False,
    cluster: int = 0,
) -> None:
    """Launch on torch's current stream of the function's device, whatever the current device is.

    Args:
        grid, block: blocks and threads in up to three dimensions.
        args: see ``pack``; tensors lie on the function's device.
        shared: dynamic shared memory in bytes; above 48 KB the function must have been asked for with it.
        pdl: let the kernel start before the one ahead of it in the stream has ended (programmatic dependent launch);
            it must wait by griddepcontrol.wait before it touches what that one writes.
        cluster: blocks a cluster, along x; 0 for a launch without clusters.

    Raises:
        ResetError: bad arguments, or the driver refuses the launch.
    """
    device = function.device
    packer = pack(args, device)
    key = (grid, block, shared, pdl, cluster)
    if (kept := _kept.configs.get(key)) is None:
        dims = [(value,) if isinstance(value, int) else value for value in (grid, block)]
        kept = _kept.configs[key] = driver.launch_config(dims[0], dims[1], shared, pdl, cluster)
    config, address = kept
    config.stream = torch._C._cuda_getCurrentRawStream(device)
    call = driver.libcuda().cuLaunchKernelEx
    if torch._C._cuda_getDevice() == device:
        status = call(address, function.handle, packer.parameters, None)
        if status == driver.INVALID_CONTEXT:  # a thread on which torch has done nothing yet
            driver.restore_context(function.context)
            status = call(address, function.handle, packer.parameters, None)
    else:
        with torch.cuda.device(device):
            status = call(address, function.handle, packer.parameters, None)
    if status:
        raise ResetError(
            f"kernel {function.name} failed to launch on cuda:{device}: {driver.error_name(status)} "
            f"(grid {grid}, block {block}, {shared} bytes shared, cluster {cluster})"
        )


def unload() -> None:
    """Forget all loaded modules (tests, and after the cache folder changed)."""
    _modules.clear()


def compiled_path(what: Build, device: torch.device | int | None = None) -> Path:
    """Where the code that ``load`` loads on a device lies."""
    return build(what, architecture(torch.cuda.get_device_capability(device_index(device))))
