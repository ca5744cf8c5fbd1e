"""ModelOpt at arm's length: its chatter, its export, and the files that it does not carry over."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from resetcli.base.errors import ResetError
from resetcli.nvfp4.skeleton import quiet_transformers

REPORT = "quantize_report.json"
_EXPORTERS = ("config.json", "hf_quant_config.json", "model.safetensors.index.json")
_OURS = (REPORT, "reset_config.json", "source.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")


def quietly(call: Callable[[], Any]) -> Any:
    """Run ``call`` with ModelOpt's chatter kept off stdout, where only our results go, and off stderr.

    Its warnings concern tested versions of transformers (ours are pinned and tested), tied weights stored once, and
    features not used here; what it raises is untouched.
    """
    logger = logging.getLogger("modelopt")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), quiet_transformers():
            warnings.simplefilter("ignore")
            return call()
    finally:
        logger.setLevel(level)


def export(model: Any, scratch: Path) -> None:
    """Write the quantized ``model`` to ``scratch`` through ModelOpt. The live model is of no use afterwards.

    Raises:
        ResetError: the disk is full, or ModelOpt cannot export this architecture.
    """
    from modelopt.torch.export import export_hf_checkpoint

    try:
        with torch.inference_mode():
            quietly(lambda: export_hf_checkpoint(model, export_dir=scratch))
    except (OSError, KeyboardInterrupt, torch.cuda.OutOfMemoryError):
        raise
    except Exception as exc:  # safetensors reports a full disk as an error of its own
        if "No space left" in str(exc):
            raise ResetError(f"cannot write the checkpoint: no space left under {scratch.parent}; use -o") from exc
        reason = (str(exc).strip().splitlines() or [""])[0][:300]
        raise ResetError(f"ModelOpt could not export this model: {type(exc).__name__}: {reason}") from exc


def carry_over(source: Path, target: Path) -> None:
    """Copy what belongs to a model beside its weights, byte for byte; drop what the exporter made up in its place."""
    kept = {}
    for item in sorted(source.iterdir()):
        if item.name.startswith(".") or item.name in (*_EXPORTERS, *_OURS) or item.suffix in _WEIGHTS:
            continue
        if item.name.endswith(".index.json"):
            continue
        if item.is_file() or item.name == "additional_chat_templates":
            kept[item.name] = item
    if "generation_config.json" not in kept:
        (target / "generation_config.json").unlink(missing_ok=True)
    for name, item in kept.items():
        if item.is_dir():
            shutil.copytree(item, target / name, dirs_exist_ok=True)
        else:
            shutil.copyfile(item, target / name)
    for item in target.iterdir():
        if item.is_file():
            item.chmod(0o644)  # the exporter's files are private to the user
