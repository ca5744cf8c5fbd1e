"""Whether the CUDA kernels can be used on a device, and in one line why not."""

from __future__ import annotations

from functools import lru_cache

import torch

from resetcli.base.errors import ResetError
from resetcli.cuda.build import architecture, kernels_folder
from resetcli.cuda.driver import libcuda
from resetcli.cuda.launch import device_index, import_cupy
from resetcli.cuda.nvrtc import compiler


def kernels_available(device: torch.device | int | None = None) -> tuple[bool, str]:
    """(True, what there is) or (False, why not and what mends it) for a CUDA device, None being the current one."""
    if torch.version.cuda is None:
        return False, f"torch {torch.__version__} was built without CUDA"
    if not torch.cuda.is_available():
        return False, f"torch {torch.__version__} finds no GPU or no NVIDIA driver"
    return _available(device_index(device))


@lru_cache(maxsize=64)
def _available(index: int) -> tuple[bool, str]:
    try:
        arch = architecture(torch.cuda.get_device_capability(index))
        libcuda()
        cupy = import_cupy()
        version = compiler().version
        kernels_folder()
    except ResetError as exc:
        return False, str(exc)
    return True, f"{arch}, NVRTC {version[0]}.{version[1]}, CuPy {cupy.__version__}"
