"""The loader: ModelOpt's own logits to the last bit, both layouts, tied and untied, biases, memory, refusals."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import (
    TEXT,
    as_compressed_tensors,
    compressed_metadata,
    make_model_dir,
    modelopt_metadata,
    nvfp4_tensors,
    write_checkpoint,
)

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import CollectingReporter
from resetcli.nvfp4 import codec
from resetcli.nvfp4.linear import NVFP4Linear
from resetcli.nvfp4.loader import load_nvfp4, load_pretrained

IDS = torch.arange(5, 65)[None]


def logits(model) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS).logits


def reference_logits(model_dir: Path, tensors: dict[str, torch.Tensor], layers: list[str]) -> torch.Tensor:
    """Logits by transformers' own model in float32 with dequantized weights and quantized inputs put in by hooks."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    for name in layers:
        module = model.get_submodule(name)
        part = [tensors[f"{name}.{s}"] for s in ("weight", "weight_scale", "weight_scale_2", "input_scale")]
        module.weight.data = codec.dequantize(*part[:3])
        module.register_forward_pre_hook(lambda _, a, g=part[3]: (codec.fake_quantize_activation(a[0], g),))
    return logits(model)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])  # qwen2 has biases, qwen3 q/k norms
@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_a_model_dequantized_by_hand(tmp_path, architecture, tied):
    source = make_model_dir(tmp_path / "m", architecture=architecture, tied=tied)
    tensors, layers = nvfp4_tensors(source)
    expected = reference_logits(source, tensors, layers)
    path = write_checkpoint(source, tmp_path / "c", tensors=tensors, metadata=modelopt_metadata(), shards=2)
    model, nvfp4 = load_pretrained(path, dtype=torch.float32)
    assert nvfp4 and not model.training and not any(p.requires_grad for p in model.parameters())
    assert torch.equal(logits(model), expected)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert model.generation_config.top_k == 20 and model.dtype == torch.float32
    assert sum(isinstance(m, NVFP4Linear) for m in model.modules()) == len(layers) == 14


def test_compressed_tensors_is_the_same_model(tiny_model_dir, tiny_checkpoint, tmp_path):
    tensors, layers = nvfp4_tensors(tiny_model_dir)
    for name in layers:  # powers of two, whose reciprocals lose nothing
        tensors[f"{name}.weight_scale_2"] = torch.exp2(tensors[f"{name}.weight_scale_2"].log2().round())
        tensors[f"{name}.input_scale"] = torch.exp2(tensors[f"{name}.input_scale"].log2().round())
    native = write_checkpoint(tiny_model_dir, tmp_path / "a", tensors=tensors, metadata=modelopt_metadata())
    other = write_checkpoint(
        tiny_model_dir, tmp_path / "b", tensors=as_compressed_tensors(tensors, layers), metadata=compressed_metadata()
    )
    assert torch.equal(logits(load_nvfp4(native, dtype=torch.float32)), logits(load_nvfp4(other, dtype=torch.float32)))


def test_w4a16_and_bf16(tiny_checkpoint, tiny_model_dir):
    whole = logits(load_nvfp4(tiny_checkpoint, dtype=torch.float32))
    weights = logits(load_nvfp4(tiny_checkpoint, dtype=torch.float32, activations="w4a16"))
    assert not torch.equal(whole, weights)
    model = load_nvfp4(tiny_checkpoint)  # the config's dtype
    assert model.dtype == torch.bfloat16 and logits(model).dtype == torch.bfloat16
    plain, nvfp4 = load_pretrained(tiny_model_dir, dtype=torch.float32)
    assert not nvfp4 and plain.dtype == torch.float32 and plain.generation_config.top_k == 20
    assert (logits(plain) - weights).square().mean() < (logits(plain) - whole).square().mean()


def test_weight_only_checkpoint(tiny_model_dir, tiny_checkpoint, tmp_path):
    tensors, layers = nvfp4_tensors(tiny_model_dir)
    for name in layers:
        del tensors[f"{name}.input_scale"]
    metadata = {**modelopt_metadata(), "quant_algo": "W4A16_NVFP4"}
    path = write_checkpoint(tiny_model_dir, tmp_path / "w", tensors=tensors, metadata=metadata, hf_quant_config=False)
    reporter = CollectingReporter()
    model = load_nvfp4(path, dtype=torch.float32, reporter=reporter)
    assert "weights only" in reporter.warnings[0]
    expected = logits(load_nvfp4(tiny_checkpoint, dtype=torch.float32, activations="w4a16"))
    assert torch.equal(logits(model), expected)


def _fake_quantize_by_modelopt(inputs, block_size, amax, *args):
    """ModelOpt's CUDA-only fake quantization, by its own exporter class on the CPU."""
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    g = amax.float().amax() / (6 * 448)
    stored, scales, _ = NVFP4QTensor.quantize(inputs.clone(), block_size, None, g)
    return stored.dequantize(inputs.dtype, scale=scales, double_scale=g, block_sizes={-1: block_size})


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_logits_are_modelopts_own(tmp_path, monkeypatch, architecture):
    """mtq.quantize, fuse, logits; then export, load with ours, logits: equal in every bit."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers
    from modelopt.torch.quantization import tensor_quant
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setattr(tensor_quant, "dynamic_block_quantize_op", _fake_quantize_by_modelopt)
    source = make_model_dir(tmp_path / "m", architecture=architecture)
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)

    def calibrate(m):
        with torch.no_grad():
            for text in TEXT:
                m(tokenizer(text, return_tensors="pt").input_ids)

    model = mtq.quantize(model, copy.deepcopy(mtq.NVFP4_DEFAULT_CFG), calibrate)
    fused = copy.deepcopy(model)
    requantize_resmooth_fused_llm_layers(fused)
    expected = logits(fused)
    export_hf_checkpoint(model, dtype=torch.float32, export_dir=tmp_path / "out")
    ours = logits(load_nvfp4(tmp_path / "out", dtype=torch.float32))
    assert expected.std() > 0.1
    assert float((ours - expected).abs().max()) == 0.0


def test_nothing_is_half_loaded(tiny_checkpoint, tiny_model_dir, tmp_path):
    path = tmp_path / "nan"
    shutil.copytree(tiny_checkpoint, path)
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"][3] = torch.nan
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(ResetError, match=r"model\.norm\.weight .* NaN"):
        load_nvfp4(path)

    lacking = tmp_path / "lacking"
    shutil.copytree(tiny_model_dir, lacking)
    tensors = load_file(lacking / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, lacking / "model.safetensors", {"format": "pt"})
    with pytest.raises(ResetError, match=r"lacks 1 tensors .* model\.norm\.weight"):
        load_pretrained(lacking)


def test_refusals(tmp_path, tiny_checkpoint, tiny_model_dir):
    with pytest.raises(ResetError, match="does not exist"):
        load_pretrained(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="unknown activations"):
        load_pretrained(tiny_checkpoint, activations="w8a8")
    path = tmp_path / "cut"
    shutil.copytree(tiny_model_dir, path)
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[:-100])
    with pytest.raises(ResetError, match="cut short"):
        load_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    for change, words in (
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantized as awq 4"),
        ({"model_type": "no_such_model"}, "cannot be loaded as a language model"),
    ):
        (path / "model.safetensors").write_bytes(data)
        (path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ResetError, match=words) as caught:
            load_pretrained(path)
        assert "\n" not in str(caught.value)


def test_code_in_the_directory_runs_only_on_request(tiny_checkpoint, tmp_path):
    path = tmp_path / "code"
    shutil.copytree(tiny_checkpoint, path)
    (path / "modeling_own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    config = json.loads((path / "config.json").read_text())
    config |= {"model_type": "own", "architectures": ["OwnForCausalLM"]}
    config["auto_map"] = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ResetError, match="--trust-remote-code"):
        load_nvfp4(path)
    model = load_nvfp4(path, dtype=torch.float32, trust_remote_code=True)
    assert type(model).__name__ == "OwnForCausalLM"
    assert torch.equal(logits(model), logits(load_nvfp4(tiny_checkpoint, dtype=torch.float32)))


_MEASURE = """
import sys, resource, torch
from resetcli.nvfp4.loader import load_nvfp4
load_nvfp4(sys.argv[1], dtype=torch.bfloat16)  # the small one: imports and first-use costs
def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024
def now():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmRSS")) * 1024
before = now()
model = load_nvfp4(sys.argv[2], dtype=torch.bfloat16)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_memory_while_loading(tiny_checkpoint, tmp_path):
    """At most 1.3 times the checkpoint (the cache of dequantized weights is made later, on first use)."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=4096, hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=8,
    )  # fmt: skip
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tensors = {}
    for name, value in skeleton.state_dict().items():
        stem = name.removesuffix(".weight")
        if "_proj" not in name:
            tensors[name] = torch.ones(value.shape, dtype=torch.bfloat16)
            continue
        n, k = value.shape
        tensors[name] = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
        tensors[f"{stem}.weight_scale"] = torch.ones(n, k // 16).to(torch.float8_e4m3fn)
        tensors[f"{stem}.weight_scale_2"] = torch.tensor(0.001)
        tensors[f"{stem}.input_scale"] = torch.tensor(0.001)
    path = tmp_path / "big"
    path.mkdir()
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(path)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    size = sum(t.nbytes for t in tensors.values())
    assert size > 50e6
    del tensors
    run = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(tiny_checkpoint), str(path)], capture_output=True, text=True, check=True
    )
    peak = int(run.stdout.splitlines()[-1])
    assert 0.9 * size < peak < 1.3 * size
