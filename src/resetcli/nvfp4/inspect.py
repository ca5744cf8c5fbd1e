"""The anatomy of a model directory: what ``reset inspect`` prints and what reports record. JSON-ready values only."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch

from resetcli.base.errors import ResetError
from resetcli.base.files import read_json
from resetcli.nvfp4.checkpoint import Checkpoint, fingerprint, is_nvfp4
from resetcli.nvfp4.metadata import read_config, read_metadata
from resetcli.nvfp4.tensorfile import TensorInfo, read_headers, read_tensor


def inspect_checkpoint(path: Path | str, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """Validate the model at ``path`` and describe it.

    An NVFP4 checkpoint is checked wholly; an unquantized directory, its headers. Keys: path, nvfp4, format, producer,
    architecture, model_type, context, vocab_size, layers, tied_embeddings, chat_template, thinking, files, bytes,
    parameters, bits_per_weight, tensors_by_dtype, fingerprint, notes, reset_config, quantize_report; for NVFP4
    also quantized_layers, weight_only, ignored, shapes (per kind of layer), scales (ranges), bytes_by_part.

    Raises:
        ResetError: no model there, or a broken one; every fault in one line.
    """
    path = Path(path)
    config = read_config(path)
    nvfp4 = is_nvfp4(path)
    checkpoint = Checkpoint.open(path, trust_remote_code=trust_remote_code) if nvfp4 else None
    if checkpoint is not None:
        tensors, files = checkpoint.tensors, checkpoint.files
    else:
        if (metadata := read_metadata(path, config)) and (fault := metadata.fault()):
            raise ResetError(f"{path} cannot be read: {fault}")
        tensors, files, faults = read_headers(path)
        if faults:
            raise ResetError(f"{path} is damaged: {'; '.join(faults[:8])}")
    text: dict[str, Any] = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    template = _chat_template(path)
    report: dict[str, Any] = {
        "path": str(path.resolve()),
        "nvfp4": nvfp4,
        "format": checkpoint.format if checkpoint else "unquantized",
        "producer": checkpoint.metadata.producer if checkpoint and checkpoint.metadata else None,
        "architecture": (config.get("architectures") or [None])[0],
        "model_type": config["model_type"],
        "context": text.get("max_position_embeddings"),
        "vocab_size": text.get("vocab_size"),
        "layers": text.get("num_hidden_layers"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "chat_template": template is not None,
        "thinking": template is not None and "enable_thinking" in template,
        "files": [{"name": file.name, "bytes": file.stat().st_size} for file in files],
        "bytes": sum(info.nbytes for info in tensors.values()),
        "parameters": _parameters(tensors, checkpoint),
        "tensors_by_dtype": dict(sorted(Counter(info.dtype for info in tensors.values()).items())),
        "fingerprint": checkpoint.fingerprint() if checkpoint else fingerprint(path),
        "notes": list(checkpoint.notes) if checkpoint else [],
        "reset_config": _optional_json(path / "reset_config.json"),
        "quantize_report": (path / "quantize_report.json").is_file(),
    }
    report["bits_per_weight"] = round(8 * report["bytes"] / max(1, report["parameters"]), 3)
    if checkpoint is not None:
        report |= _quantized_part(checkpoint)
    return report


def _quantized_part(checkpoint: Checkpoint) -> dict[str, Any]:
    layers = checkpoint.layers
    kinds: dict[tuple[str, int, int], int] = Counter()
    parts: dict[str, int] = defaultdict(int)
    owned: set[str] = set()
    for layer in layers.values():
        kinds[layer.name.rpartition(".")[2], layer.n, layer.k] += 1
        parts["codes"] += layer.weight.nbytes
        parts["block_scales"] += layer.weight_scale.nbytes
        for info in (layer.weight_scale_2, layer.input_scale):
            parts["global_scales"] += info.nbytes if info else 0
            owned.add(info.name if info else "")
        owned |= {layer.weight.name, layer.weight_scale.name}
    for name, info in checkpoint.tensors.items():
        if name not in owned:
            parts["embeddings" if "embed" in name or "lm_head" in name else "other"] += info.nbytes
    counts = torch.zeros(256, dtype=torch.int64)
    for layer in layers.values():
        counts += torch.bincount(read_tensor(layer.weight_scale).view(torch.uint8).flatten(), minlength=256)
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    present = values[counts > 0]
    inputs = [scale for _, scale in checkpoint.scales.values() if scale is not None]
    weights = [scale for scale, _ in checkpoint.scales.values()]
    return {
        "quantized_layers": len(layers),
        "weight_only": checkpoint.weight_only,
        "ignored": list(checkpoint.ignored),
        "shapes": [{"kind": kind, "n": n, "k": k, "count": count} for (kind, n, k), count in sorted(kinds.items())],
        "scales": {
            "block": {
                "min": float(present.min()),
                "max": float(present.max()),
                "mean": float((values.nan_to_num() * counts).sum() / counts.sum()),
                "at_max": int(counts[values == 448].sum()),
                "at_min": int(counts[values == 2.0**-9].sum()),
                "count": int(counts.sum()),
            },
            "weight_scale_2": [min(weights), max(weights)],
            "input_scale": [min(inputs), max(inputs)] if inputs else None,
        },
        "bytes_by_part": dict(parts),
    }


def _parameters(tensors: dict[str, TensorInfo], checkpoint: Checkpoint | None) -> int:
    """Weights of the model: a packed byte is two, scales are none."""
    if checkpoint is None:
        return sum(math.prod(info.shape) for info in tensors.values())
    scales = {part.name for layer in checkpoint.layers.values() for part in
              (layer.weight_scale, layer.weight_scale_2, layer.input_scale) if part is not None}  # fmt: skip
    packed = {layer.weight.name for layer in checkpoint.layers.values()}
    return sum(
        math.prod(info.shape) * (2 if name in packed else 1)
        for name, info in tensors.items()
        if name not in scales and name not in checkpoint.ignored_tensors
    )


def _chat_template(path: Path) -> str | None:
    if (path / "chat_template.jinja").is_file():
        return (path / "chat_template.jinja").read_text(encoding="utf-8")
    stored = _optional_json(path / "tokenizer_config.json")
    template = stored.get("chat_template") if isinstance(stored, dict) else None
    return template if template is None or isinstance(template, str) else str(template)


def _optional_json(path: Path) -> Any:
    return read_json(path) if path.is_file() else None
