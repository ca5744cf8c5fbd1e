"""The anatomy of checkpoints, against numbers counted from the tensors themselves."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from resetcli.base.errors import ResetError
from resetcli.nvfp4.inspect import inspect_checkpoint


def test_anatomy_of_a_checkpoint(tiny_checkpoint, tiny_model_dir):
    report = inspect_checkpoint(tiny_checkpoint)
    json.dumps(report, allow_nan=False)
    tensors = load_file(tiny_checkpoint / "model.safetensors")
    assert report["nvfp4"] and report["format"] == "modelopt" and report["quantized_layers"] == 14
    assert report["parameters"] == sum(t.numel() for t in load_file(tiny_model_dir / "model.safetensors").values())
    assert report["bytes"] == sum(t.nbytes for t in tensors.values()) == sum(report["bytes_by_part"].values())
    assert report["bits_per_weight"] == round(8 * report["bytes"] / report["parameters"], 3)
    assert sum(shape["count"] for shape in report["shapes"]) == 14
    assert {"kind": "down_proj", "n": 64, "k": 128, "count": 2} in report["shapes"]
    scales = torch.cat([t.float().flatten() for name, t in tensors.items() if name.endswith("weight_scale")])
    block = report["scales"]["block"]
    assert (block["min"], block["max"], block["count"]) == (float(scales.min()), float(scales.max()), len(scales))
    assert block["mean"] == pytest.approx(float(scales.mean())) and block["at_max"] == int((scales == 448).sum())
    inputs = [float(t) for name, t in tensors.items() if name.endswith("input_scale")]
    assert report["scales"]["input_scale"] == [min(inputs), max(inputs)]
    assert report["chat_template"] and report["thinking"] and report["tied_embeddings"]
    assert report["context"] == 512 and report["vocab_size"] == 336 and report["layers"] == 2


def test_anatomy_of_an_unquantized_model(tiny_model_dir):
    report = inspect_checkpoint(tiny_model_dir)
    assert not report["nvfp4"] and report["format"] == "unquantized" and report["bits_per_weight"] == 16
    assert "scales" not in report


def test_broken_models(tiny_model_dir, tiny_checkpoint, tmp_path):
    with pytest.raises(ResetError, match="does not exist"):
        inspect_checkpoint(tmp_path / "nowhere")
    for source in (tiny_model_dir, tiny_checkpoint):
        path = tmp_path / source.name
        shutil.copytree(source, path)
        data = (path / "model.safetensors").read_bytes()
        (path / "model.safetensors").write_bytes(data[: len(data) // 2])
        with pytest.raises(ResetError, match="cut short"):
            inspect_checkpoint(path)
