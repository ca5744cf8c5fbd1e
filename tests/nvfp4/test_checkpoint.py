"""The checkpoint reader: what it accepts, and that each kind of damage is told in one line, all of it together."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import (
    as_compressed_tensors,
    compressed_metadata,
    make_model_dir,
    modelopt_metadata,
    nvfp4_tensors,
    write_checkpoint,
)

from resetcli.base.errors import ResetError
from resetcli.nvfp4.checkpoint import Checkpoint, fingerprint, is_nvfp4

LAYER = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.1.mlp.down_proj"


@pytest.fixture
def broken(tiny_checkpoint, tmp_path):
    """Makes a copy of the tiny checkpoint with tensors changed by a function, and returns its error line."""

    def make(change) -> str:
        path = tmp_path / "broken"
        shutil.copytree(tiny_checkpoint, path)
        tensors = load_file(path / "model.safetensors")
        change(tensors)
        save_file(tensors, path / "model.safetensors")
        with pytest.raises(ResetError) as caught:
            Checkpoint.open(path)
        line = str(caught.value)
        assert "\n" not in line and caught.value.exit_code == 1 and str(path) in line
        return line

    return make


def test_a_sound_checkpoint(tiny_checkpoint, tiny_model_dir):
    checkpoint = Checkpoint.open(tiny_checkpoint)
    assert len(checkpoint.layers) == 14 and checkpoint.format == "modelopt" and checkpoint.ignored == ("lm_head",)
    layer = checkpoint.layers[LAYER]
    assert (layer.n, layer.k, layer.shard) == (64, 64, "model.safetensors")
    assert checkpoint.notes == [] and not checkpoint.weight_only
    tensors = load_file(tiny_checkpoint / "model.safetensors")
    assert checkpoint.size_bytes == sum(t.nbytes for t in tensors.values())
    assert checkpoint.scales[LAYER][1] == float(tensors[f"{LAYER}.input_scale"])
    assert is_nvfp4(tiny_checkpoint) and not is_nvfp4(tiny_model_dir)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("layout", ["modelopt", "compressed-tensors", "stripped", "stripped-compressed", "only-hf"])
def test_layouts(tiny_model_dir, tmp_path, layout, shards):
    tensors, layers = nvfp4_tensors(tiny_model_dir)
    metadata = modelopt_metadata()
    if "compressed" in layout:
        tensors, metadata = as_compressed_tensors(tensors, layers), compressed_metadata()
    if "stripped" in layout:
        metadata = None
    path = write_checkpoint(tiny_model_dir, tmp_path / "c", tensors=tensors, metadata=metadata, shards=shards)
    if layout == "only-hf":
        config = json.loads((path / "config.json").read_text())
        del config["quantization_config"]
        (path / "config.json").write_text(json.dumps(config))
    assert is_nvfp4(path)
    checkpoint = Checkpoint.open(path)
    assert set(checkpoint.layers) == set(layers)
    assert checkpoint.format == ("compressed-tensors" if "compressed" in layout else "modelopt")
    assert bool(checkpoint.notes) == ("stripped" in layout)
    reference = nvfp4_tensors(tiny_model_dir)[0]
    for name, (weight, inputs) in checkpoint.scales.items():
        assert weight == pytest.approx(float(reference[f"{name}.weight_scale_2"]), rel=2e-7)
        assert inputs == pytest.approx(float(reference[f"{name}.input_scale"]), rel=2e-7)


def _nan_scale(t):
    t[f"{DOWN}.weight_scale"].view(torch.uint8)[3, 2] = 0x7F


def _zero_scale(t):
    t[f"{DOWN}.weight_scale"].view(torch.uint8)[:2, 0] = 0


def _negative_scale(t):
    t[f"{DOWN}.weight_scale"].view(torch.uint8)[0, 0] |= 0x80


def _set(name, value):
    return lambda t: t.__setitem__(name, value(t[name]) if callable(value) else value)


def _k_1000(t):
    t[f"{DOWN}.weight"] = torch.zeros(64, 500, dtype=torch.uint8)


DAMAGE = {
    "input_scale deleted": (lambda t: t.pop(f"{LAYER}.input_scale"), f"1 fault: {LAYER}.input_scale is missing"),
    "weight_scale deleted": (lambda t: t.pop(f"{LAYER}.weight_scale"), f"1 fault: {LAYER}.weight_scale is missing"),
    "weight deleted": (lambda t: t.pop(f"{LAYER}.weight"), f"1 fault: {LAYER}.weight is missing"),
    "norm deleted": (lambda t: t.pop("model.norm.weight"), "1 fault: model.norm.weight is missing"),
    "NaN block scale": (_nan_scale, f"1 fault: {DOWN}.weight_scale has 1 NaN values"),
    "zero block scale": (_zero_scale, f"1 fault: {DOWN}.weight_scale has 2 zero values"),
    "negative block scale": (_negative_scale, f"1 fault: {DOWN}.weight_scale has 1 negative values"),
    "NaN input_scale": (_set(f"{DOWN}.input_scale", torch.tensor(torch.nan)), f"1 fault: {DOWN}.input_scale is nan"),
    "zero input_scale": (_set(f"{DOWN}.input_scale", torch.tensor(0.0)), f"1 fault: {DOWN}.input_scale is 0"),
    "zero weight_scale_2": (_set(f"{DOWN}.weight_scale_2", torch.tensor(0.0)), "weight_scale_2 is 0"),
    "infinite weight_scale_2": (_set(f"{DOWN}.weight_scale_2", torch.tensor(torch.inf)), "weight_scale_2 is inf"),
    "negative weight_scale_2": (_set(f"{DOWN}.weight_scale_2", torch.tensor(-1.0)), "weight_scale_2 is -1"),
    "too few nibbles": (_set(f"{DOWN}.weight", lambda w: w[:, :-8].contiguous()), "112 nibbles a row"),
    "K=1000": (_k_1000, f"{DOWN}.weight has K = 1000, not divisible by 16"),
    "row count": (_set(f"{DOWN}.weight_scale", lambda s: s[:-1].contiguous()), "has 64 rows, but"),
    "scale dtype": (_set(f"{DOWN}.weight_scale", lambda s: s.to(torch.bfloat16)), "dtype BF16, not F8_E4M3"),
    "input_scale dtype": (_set(f"{DOWN}.input_scale", lambda s: s.to(torch.bfloat16)), "dtype BF16, not F32"),
    "input_scale shape": (_set(f"{DOWN}.input_scale", torch.ones(4)), "shape [4], not a scalar"),
    "norm shape": (_set("model.norm.weight", torch.ones(32)), "norm.weight has shape [32], but the config says [64]"),
    "norm dtype": (_set("model.norm.weight", torch.ones(64, dtype=torch.int32)), "model.norm.weight has dtype I32"),
    "unknown tensor": (lambda t: t.update(extra=torch.ones(2)), "extra is unknown to LlamaForCausalLM"),
    "unequal input_scale": (
        _set(f"{LAYER}.input_scale", lambda s: s * 2), "q_proj/k_proj/v_proj have unequal input_scale"),
    "unequal weight_scale_2": (
        _set("model.layers.1.mlp.up_proj.weight_scale_2", lambda s: s * 2),
        "gate_proj/up_proj have unequal weight_scale_2"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_one_kind_of_damage(broken, kind):
    change, words = DAMAGE[kind]
    assert words in broken(change)


def test_layer_of_another_size(broken):
    def change(t):
        t[f"{DOWN}.weight"] = t[f"{DOWN}.weight"][:32].contiguous()
        t[f"{DOWN}.weight_scale"] = t[f"{DOWN}.weight_scale"][:32].contiguous()

    assert f"{DOWN} has weight [32, 128], but the config says [64, 128]" in broken(change)


def test_all_damage_is_told_at_once(broken):
    def change(t):
        t.pop(f"{LAYER}.input_scale")
        _nan_scale(t)
        t["extra"] = torch.ones(2)

    line = broken(change)
    assert "has 3 faults: " in line
    assert "input_scale is missing" in line and "NaN" in line and "extra is unknown" in line


def test_a_long_list_is_capped(broken):
    line = broken(lambda t: [t.pop(name) for name in list(t) if name.endswith(".input_scale")])
    assert "14 faults" in line and line.endswith("and 6 more") and len(line) < 1200


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_cut_short(tiny_checkpoint, tmp_path, keep):
    path = tmp_path / "cut"
    shutil.copytree(tiny_checkpoint, path)
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[:keep])
    with pytest.raises(ResetError, match=r"model\.safetensors is cut short"):
        Checkpoint.open(path)
    with pytest.raises(ResetError, match="cut short"):
        fingerprint(path)


def test_damaged_files(tiny_model_dir, tmp_path):
    path = write_checkpoint(tiny_model_dir, tmp_path / "c", metadata=modelopt_metadata(), shards=3)
    second = path / "model-00002-of-00003.safetensors"
    whole = second.read_bytes()
    second.write_bytes(whole + b"xx")
    with pytest.raises(ResetError, match="bytes left over"):
        Checkpoint.open(path)
    second.write_bytes(b"\x10" + bytes(7) + b"not json at all." + bytes(50))
    with pytest.raises(ResetError, match="header is not JSON"):
        Checkpoint.open(path)
    second.unlink()
    with pytest.raises(ResetError, match="model-00002-of-00003.safetensors is missing"):
        Checkpoint.open(path)
    second.write_bytes(whole)
    index = json.loads((path / "model.safetensors.index.json").read_text())
    index["weight_map"]["ghost"] = second.name
    index["weight_map"]["outside"] = "../other.safetensors"
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ResetError, match="2 faults: .*outside the directory.*ghost is not in"):
        Checkpoint.open(path)


def test_not_a_model(tmp_path, tiny_model_dir):
    with pytest.raises(ResetError, match="does not exist"):
        Checkpoint.open(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ResetError, match="is a file"):
        is_nvfp4(tmp_path / "file")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ResetError, match=r"no config\.json"):
        is_nvfp4(empty)
    (empty / "config.json").write_text("{}")
    with pytest.raises(ResetError, match="no model_type"):
        is_nvfp4(empty)
    (empty / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ResetError, match="no weights"):
        is_nvfp4(empty)
    (empty / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ResetError, match="pickled weights only"):
        is_nvfp4(empty)
    with pytest.raises(ResetError, match="not an NVFP4 checkpoint"):
        Checkpoint.open(tiny_model_dir)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt FP8"),
        ({"quant_method": "gptq", "bits": 4}, "gptq 4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "blocks have 32 values"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "compressed-tensors float-quantized"),
    ],
)
def test_other_quantizations_are_refused_by_name(tiny_checkpoint, tmp_path, metadata, words):
    path = tmp_path / "other"
    shutil.copytree(tiny_checkpoint, path)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = metadata
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ResetError, match=words):
        Checkpoint.open(path)


def test_cache_scales_are_passed_over_and_said(tiny_checkpoint, tmp_path):
    path = tmp_path / "kv"
    shutil.copytree(tiny_checkpoint, path)
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.0.self_attn.k_proj.k_scale"] = torch.ones(())
    save_file(tensors, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    (path / "config.json").write_text(json.dumps(config))
    checkpoint = Checkpoint.open(path)
    assert checkpoint.ignored_tensors == {"model.layers.0.self_attn.k_proj.k_scale"}
    assert "KV cache scheme 8-bit is not applied" in checkpoint.notes[0]


def test_fingerprint(tiny_checkpoint, tiny_model_dir, tmp_path):
    mine = fingerprint(tiny_checkpoint)
    assert len(mine) == 64 and mine == Checkpoint.open(tiny_checkpoint).fingerprint()
    assert mine != fingerprint(tiny_model_dir)
    sharded = write_checkpoint(tiny_model_dir, tmp_path / "s", metadata=modelopt_metadata(), shards=3)
    assert fingerprint(sharded) == mine
    (sharded / "reset_config.json").write_text("{}")
    assert fingerprint(sharded) == mine
    other = make_model_dir(tmp_path / "seed1", seed=1)
    assert fingerprint(other) != fingerprint(tiny_model_dir)
