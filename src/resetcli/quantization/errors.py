"""How far each quantized weight is from the one it came from, read back from the files on disk."""

from __future__ import annotations

from typing import Any

import torch

from resetcli.nvfp4 import codec
from resetcli.nvfp4.checkpoint import Checkpoint
from resetcli.nvfp4.tensorfile import TensorInfo, read_tensor


@torch.no_grad()
def layer_errors(
    checkpoint: Checkpoint, originals: dict[str, TensorInfo], device: torch.device, advance: Any
) -> list[dict[str, Any]]:
    """Per layer: name, n, k, both global scales, and ||W - What|| / ||W|| (Frobenius, float32; None if unnamed).

    ``originals``: tensors of the source directory by name. One layer at a time is on ``device``.
    """
    found = []
    for name, layer in checkpoint.layers.items():
        scale_2, input_scale = checkpoint.scales[name]
        error = None
        if (original := originals.get(f"{name}.weight")) is not None and original.shape == (layer.n, layer.k):
            # What the quantizer was given is BF16, whatever the source stores.
            weight = read_tensor(original).to(device).to(torch.bfloat16).float()
            restored = codec.dequantize(
                read_tensor(layer.weight).to(device), read_tensor(layer.weight_scale).to(device),
                torch.tensor(scale_2, dtype=torch.float32, device=device), torch.float32,
            )  # fmt: skip
            norm = torch.linalg.vector_norm(weight)
            error = float(torch.linalg.vector_norm(restored.sub_(weight)) / norm)
        found.append(
            {"name": name, "n": layer.n, "k": layer.k, "relative_error": error,
             "weight_scale_2": scale_2, "input_scale": input_scale}
        )  # fmt: skip
        advance(1)
    return found


def summary(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean, largest and where it is, over the layers that could be compared; how many could not."""
    known = [layer for layer in layers if layer["relative_error"] is not None]
    if not known:
        return {"layers": len(layers), "compared": 0, "mean": None, "max": None, "worst": None}
    worst = max(known, key=lambda layer: layer["relative_error"])
    return {
        "layers": len(layers),
        "compared": len(known),
        "mean": sum(layer["relative_error"] for layer in known) / len(known),
        "max": worst["relative_error"],
        "worst": worst["name"],
    }
