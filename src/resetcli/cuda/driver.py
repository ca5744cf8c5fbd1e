"""The few calls of the CUDA driver that launches need, by ctypes on libcuda.

CuPy loads modules, but its own launch knows neither launch attributes (programmatic dependent launch, clusters) nor
torch's streams, so launches go through cuLaunchKernelEx. torch brings the driver into the process; nothing here
initialises it. Structures follow cuda.h (CUlaunchConfig, CUlaunchAttribute: an id and a union of 64 bytes).
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_uint, c_void_p
from functools import lru_cache

from resetcli.base.errors import ResetError

CLUSTER_DIMENSION = 4
PROGRAMMATIC_STREAM_SERIALIZATION = 6
"""Launch attribute ids (CUlaunchAttributeID)."""

INVALID_CONTEXT = 201
"""CUresult on a thread that torch has not given a context yet."""

_REGISTERS = 4
_LOCAL_BYTES = 3
_MAX_DYNAMIC_SHARED = 8


class KernelsUnavailable(ResetError):
    """The CUDA kernels cannot be used here; one line with the cause and the command that mends it."""


class Attribute(ctypes.Structure):
    """CUlaunchAttribute, with the union as its first three words and the rest of its 64 bytes."""

    _fields_ = (("id", c_uint), ("pad", c_uint), ("value", c_uint * 3), ("rest", c_uint * 13))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig; ``kept`` keeps what its pointer points to."""

    kept: object

    _fields_ = (
        ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint), ("stream", c_void_p),
        ("attributes", POINTER(Attribute)), ("n_attributes", c_uint),
    )  # fmt: skip


@lru_cache(maxsize=1)
def libcuda() -> ctypes.CDLL:
    """The driver's library.

    Raises:
        KernelsUnavailable: there is none, or it is older than cuLaunchKernelEx (CUDA 11.8).
    """
    try:
        lib = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise KernelsUnavailable("there is no NVIDIA driver here (libcuda.so.1); install one, or use the CPU") from None
    if not hasattr(lib, "cuLaunchKernelEx"):
        raise KernelsUnavailable("the NVIDIA driver is older than CUDA 11.8; the kernels need a newer one, or the CPU")
    lib.cuLaunchKernelEx.argtypes = (c_void_p, c_void_p, c_void_p, c_void_p)
    lib.cuFuncGetAttribute.argtypes = (POINTER(c_int), c_int, c_void_p)
    lib.cuFuncSetAttribute.argtypes = (c_void_p, c_int, c_int)
    lib.cuGetErrorName.argtypes = (c_int, POINTER(c_char_p))
    lib.cuOccupancyMaxActiveBlocksPerMultiprocessor.argtypes = (POINTER(c_int), c_void_p, c_int, ctypes.c_size_t)
    lib.cuCtxGetCurrent.argtypes = (POINTER(c_void_p),)
    lib.cuCtxSetCurrent.argtypes = (c_void_p,)
    if hasattr(lib, "cuFuncLoad"):
        lib.cuFuncLoad.argtypes = (c_void_p,)
    return lib


def driver_version() -> tuple[int, int] | None:
    """The newest CUDA version that the driver serves, (13, 0) for example; None without a driver."""
    try:
        lib = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = c_int()
    if lib.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10


def error_name(code: int) -> str:
    """CUDA's name of an error code."""
    name = c_char_p()
    libcuda().cuGetErrorName(code, ctypes.byref(name))
    return name.value.decode() if name.value else f"CUDA error {code}"


def check(code: int, doing: str) -> None:
    """Raises:
    ResetError: ``code`` is not success; the message says what was being done.
    """
    if code:
        raise ResetError(f"{doing} failed: {error_name(code)}")


def current_context() -> int | None:
    """The calling thread's context, for ``restore_context``."""
    handle = c_void_p()
    check(libcuda().cuCtxGetCurrent(ctypes.byref(handle)), "reading the current CUDA context")
    return handle.value


def restore_context(handle: int | None) -> None:
    """Make ``handle`` the calling thread's context."""
    check(libcuda().cuCtxSetCurrent(handle), "restoring the CUDA context")


def function_attributes(handle: int) -> tuple[int, int]:
    """Registers and bytes of local memory (stack and spills) a thread of a loaded function."""
    values = []
    for attribute in (_REGISTERS, _LOCAL_BYTES):
        value = c_int()
        check(libcuda().cuFuncGetAttribute(ctypes.byref(value), attribute, handle), "reading a kernel's attributes")
        values.append(value.value)
    return values[0], values[1]


def allow_shared(handle: int, size: int, name: str) -> None:
    """Let a function use ``size`` bytes of dynamic shared memory a block (needed above 48 KB)."""
    check(
        libcuda().cuFuncSetAttribute(handle, _MAX_DYNAMIC_SHARED, size), f"giving {name} {size} bytes of shared memory"
    )


def occupancy(handle: int, threads: int, shared: int) -> int:
    """Blocks of ``threads`` with ``shared`` bytes of dynamic shared memory that fit a multiprocessor at once."""
    blocks = c_int()
    call = libcuda().cuOccupancyMaxActiveBlocksPerMultiprocessor
    check(call(ctypes.byref(blocks), handle, threads, shared), "asking for occupancy")
    return blocks.value


def load_function(handle: int, name: str) -> None:
    """Load a function's code now, so that its first launch may lie inside a graph capture (driver 12.4 and newer)."""
    lib = libcuda()
    if hasattr(lib, "cuFuncLoad"):
        check(lib.cuFuncLoad(handle), f"loading kernel {name}")


def launch_config(
    grid: tuple[int, ...], block: tuple[int, ...], shared: int, pdl: bool, cluster: int
) -> tuple[LaunchConfig, int]:
    """A launch configuration without its stream, and its address. Keep the object as long as the address is used."""
    attributes = (Attribute * 2)()
    count = 0
    if pdl:
        attributes[count].id = PROGRAMMATIC_STREAM_SERIALIZATION
        attributes[count].value[0] = 1
        count += 1
    if cluster:  # also of 1: st.async and barriers of a cluster are illegal in a launch without
        attributes[count].id = CLUSTER_DIMENSION
        attributes[count].value[:] = (cluster, 1, 1)
        count += 1
    config = LaunchConfig()
    config.grid[:] = (*grid, 1, 1)[:3]
    config.block[:] = (*block, 1, 1)[:3]
    config.shared = shared
    config.attributes = ctypes.cast(attributes, POINTER(Attribute)) if count else None
    config.n_attributes = count
    config.kept = attributes
    return config, ctypes.addressof(config)
