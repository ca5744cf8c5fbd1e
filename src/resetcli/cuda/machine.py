"""What a measurement must say of where it was taken: device, clocks, driver, source."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from resetcli.cuda.timing import last_level_cache

_QUERY = (
    "name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.draw",
    "power.limit", "temperature.gpu",
)  # fmt: skip


def describe_machine(device: torch.device, cache: int | None = None) -> dict[str, Any]:
    """What a result must say of the hardware: device, threads or multiprocessors, last-level cache in bytes; for a GPU
    also the driver and, under "nvidia_smi", clocks, power and temperature as they are now (where it is installed)."""
    cache = last_level_cache(device) if cache is None else cache
    if device.type == "cuda":
        from resetcli.cuda.driver import driver_version

        properties = torch.cuda.get_device_properties(device)
        driver = driver_version()
        return {
            "device": properties.name, "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count, "last_level_cache": cache, "cuda": torch.version.cuda,
            "driver_cuda": driver and ".".join(map(str, driver)), "nvidia_smi": nvidia_smi(device),
        }  # fmt: skip
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "device": model, "threads": torch.get_num_threads(), "capability": torch.backends.cpu.get_cpu_capability(),
        "last_level_cache": cache,
    }  # fmt: skip


def nvidia_smi(device: torch.device) -> dict[str, str] | None:
    """Clocks (MHz), power (W), temperature and driver as nvidia-smi shows them; None where it cannot be asked.

    The device is told by its UUID: CUDA_VISIBLE_DEVICES renumbers torch's devices, not nvidia-smi's.
    """
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    which = f"GPU-{uuid}" if uuid is not None else str(device.index or 0)
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits", "-i", which]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_smi(ran.stdout)


def parse_smi(text: str) -> dict[str, str] | None:
    """The fields of one line of nvidia-smi's CSV by name; None if there are not as many as were asked for."""
    values = [value.strip() for value in text.strip().split(",")]
    return dict(zip(_QUERY, values, strict=True)) if len(values) == len(_QUERY) else None


def commit(given: str | None = None) -> str | None:
    """``given``, else the commit of the checkout this package runs from ("-dirty" where files were changed), else
    None."""
    if given:
        return given
    folder = Path(__file__).resolve().parents[3]
    if not (folder / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        # Else "status" writes the index anew, and where that is broken off a lock file stays in the checkout.
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        found = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return (found if re.fullmatch(r"[0-9a-f]{40,64}", found) else "") + "-dirty" * bool(changed) or None
