"""What can be known before hours of work: shapes, disk space, the source's soundness, dead weights.

The layers a recipe will quantize are read from its own ModelOpt configuration, applied to the model on the meta
device, so that no second list of exceptions can drift from it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import nn

from resetcli.base.errors import ResetError
from resetcli.nvfp4.checkpoint import is_nvfp4
from resetcli.nvfp4.codec import BLOCK
from resetcli.nvfp4.tensorfile import DTYPES, FLOATS, TensorInfo, read_headers

_SLACK = 16 << 20  # tokenizer, reports, file system


@dataclass(frozen=True)
class Plan:
    """``layers``: name to (n, k) of each layer to be quantized; bytes of the output and of the source in 16 bit."""

    layers: dict[str, tuple[int, int]]
    output_bytes: int
    bf16_bytes: int
    tensors: dict[str, TensorInfo]


def quantized_modules(model: nn.Module, config: dict[str, Any]) -> dict[str, nn.Linear]:
    """The linear layers of ``model`` (meta will do) whose weights ``config`` quantizes, in order."""
    chosen = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        on = True
        for entry in config["quant_cfg"]:
            if entry.get("parent_class") is None and fnmatch(f"{name}.weight_quantizer", entry["quantizer_name"]):
                on = entry.get("enable", True)
        if on:
            chosen[name] = module
    return chosen


def refuse_nvfp4(path: Path) -> None:
    """Raise ``ResetError`` if ``path`` is an NVFP4 checkpoint: there is nothing more to gain, only to lose."""
    if is_nvfp4(path):
        raise ResetError(f"{path} is an NVFP4 checkpoint already; quantize the BF16 model that it was made from")


def make_plan(path: Path, model: nn.Module, config: dict[str, Any]) -> Plan:
    """Check the source directory ``path`` against what ``config`` will do to ``model`` (on the meta device).

    Raises:
        ResetError: the files are damaged or hold quantized tensors, nothing would be quantized, or a layer's
            input width is not divisible by 16.
    """
    tensors, _, faults = read_headers(path)
    if faults:
        raise ResetError(f"{path} is damaged: {'; '.join(faults[:8])}; fetch it again")
    if small := sorted({info.dtype for info in tensors.values()} - {*FLOATS, "I64", "I32", "BOOL"}):
        raise ResetError(f"{path} holds {', '.join(small)} tensors: quantized already; name its 16-bit original")
    chosen = quantized_modules(model, config)
    if not chosen:
        raise ResetError(f"nothing to quantize in {path}: no linear layer is left by the recipe and --exclude")
    odd = [f"{name} (K={module.in_features})" for name, module in chosen.items() if module.in_features % BLOCK]
    if odd:
        raise ResetError(
            f"{len(odd)} layers have an input width not divisible by {BLOCK}, as NVFP4 needs: {', '.join(odd)};"
            " leave them in BF16 with --exclude PATTERN, or use a model whose widths are multiples of 16"
        )
    layers = {name: (module.out_features, module.in_features) for name, module in chosen.items()}
    weights = {f"{name}.weight" for name in layers}
    bf16 = out = 0
    for name, info in tensors.items():
        count = info.nbytes // DTYPES[info.dtype].itemsize
        bf16 += 2 * count
        out += count // 2 + count // BLOCK + 1024 if name in weights else 2 * count
    return Plan(layers, out, bf16, tensors)


def check_disk(output: Path, need: int) -> None:
    """Refuse to begin when the file system of ``output`` has less than ``need`` bytes and some slack.

    Raises:
        ResetError: with both figures.
    """
    folder = output.absolute().parent
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < need + _SLACK:
        raise ResetError(
            f"the checkpoint needs about {(need + _SLACK) / 1e6:.0f} MB, but {folder} has {free / 1e6:.0f} MB free;"
            " free space or choose another folder with -o"
        )


@torch.no_grad()
def check_weights(model: nn.Module, names: Iterable[str]) -> None:
    """Refuse weights that NVFP4 cannot hold: all zero (their global scale would be 0) or not finite.

    Raises:
        ResetError: naming every such layer.
    """
    zero, broken = [], []
    for name in names:
        low, high = torch.aminmax(model.get_parameter(f"{name}.weight"))
        amax = float(torch.maximum(low.abs(), high.abs()))
        if amax == 0:
            zero.append(name)
        elif not amax < float("inf"):
            broken.append(name)
    if broken:
        raise ResetError(f"weights are NaN or infinite in {', '.join(broken)}; fetch the model again")
    if zero:
        names = ", ".join(zero)
        raise ResetError(f"weights are all zero in {names}: they have no scale; leave them out with --exclude")


def check_ranges(model: nn.Module, names: Iterable[str]) -> None:
    """After calibration: every quantized layer has seen a finite, non-zero input.

    Raises:
        ResetError: naming every layer that has not.
    """
    unseen = []
    for name in names:
        amax = getattr(model.get_submodule(name).input_quantizer, "amax", None)
        if amax is None or not 0 < float(amax.float().max()) < float("inf"):
            unseen.append(name)
    if unseen:
        raise ResetError(
            f"the calibration text never gave {', '.join(unseen)} a usable input, so they have no activation scale;"
            " give more text with --calib-data or --calib-samples, or leave them out with --exclude"
        )
