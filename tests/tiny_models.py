"""Tiny models that tests make for themselves: tokenizer, Llama-architecture model, NVFP4 checkpoints of it.

Everything is trained or drawn in process, in a second or two; nothing is downloaded.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from resetcli.nvfp4 import codec

TEXT = (
    "First add two and three.\n\nThe sum is five, so we take five apples.\n\nNow double it: 5 * 2 = 10.\n\n",
    "Let x = 12. Then x - 7 = 5.\n\nWe check: 5 + 7 = 12.\n\nTherefore the answer is \\boxed{5}.\n",
    "A farmer has 40 hens and sells 15 of them.\n\nHe keeps 40 - 15 = 25 hens.\n\nSo the answer is \\boxed{25}.\n",
    "def double(n):\n    return 2 * n\n\n\nprint(double(21))\r\n\r\nIt prints 42.\n\nWait, let me check that.\n\n",
    "Rivers run to the sea; the sea is never full.\n\nHow many days until the boat returns? Three days, they say.\n\n",
)

CHATML = (
    "{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
    "{%- endif %}{% endif %}"
)
"""ChatML without a BOS; with ``enable_thinking=False`` it opens the answer with an empty thought, as Qwen3 does."""

CHATML_WITH_BOS = "{{ bos_token }}" + CHATML

_WORDS = r"'s|'t|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def make_tokenizer(*, bos: bool = False):
    """Byte-level BPE of about 320 tokens with "\\n\\n" and ".\\n\\n" merges, ChatML and <think> added tokens.

    With ``bos``, a "<s>" that both the tokenizer and its chat template add, as several model families do.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + (["<s>"] if bos else [])
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=316 + len(special),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(TEXT * 4, trainer)
    raw.add_tokens(["<think>", "</think>"])
    if bos:
        raw.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", raw.token_to_id("<s>"))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        bos_token="<s>" if bos else None,
        chat_template=CHATML_WITH_BOS if bos else CHATML,
        clean_up_tokenization_spaces=False,
    )


def make_model_dir(
    path: Path, *, bos: bool = False, architecture: str = "llama", tied: bool = True, seed: int = 0
) -> Path:
    """A BF16 Hugging Face directory: hidden 64, 2 layers, 4 heads over 2, vocabulary padded to 336, context 512."""
    import transformers

    tokenizer = make_tokenizer(bos=bos)
    config = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config, "qwen2": transformers.Qwen2Config}[
        architecture
    ](
        vocab_size=336,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.15,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        for parameter in model.parameters():  # biases and norms too, else tests could not see them lost
            if parameter.dim() == 1:
                parameter.data.add_(torch.randn(parameter.shape).to(parameter.dtype) * 0.05)
    model.generation_config = transformers.GenerationConfig(
        do_sample=True, temperature=0.7, top_k=20, eos_token_id=tokenizer.eos_token_id
    )
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def calibration_amax(model_dir: Path) -> dict[str, torch.Tensor]:
    """max|input| of each Linear of the decoder layers over ``TEXT``, by module name."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    amax: dict[str, torch.Tensor] = {}

    def watch(name):
        def hook(module, args):
            amax[name] = torch.maximum(amax.get(name, torch.zeros(())), args[0].abs().amax())

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(watch(name))
    with torch.no_grad():
        for text in TEXT:
            model(tokenizer(text, return_tensors="pt").input_ids)
    return amax


def fused_group(name: str) -> str:
    """Layers that share scales have one group: q/k/v of an attention, gate/up of an MLP."""
    parent, _, leaf = name.rpartition(".")
    for group in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        if leaf in group:
            return f"{parent}.{group[0]}"
    return name


def nvfp4_tensors(model_dir: Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The tensors of an NVFP4 checkpoint of ``model_dir`` in ModelOpt's layout, and the quantized layers' names."""
    from safetensors.torch import load_file

    tensors = load_file(model_dir / "model.safetensors")
    amax = calibration_amax(model_dir)
    groups = defaultdict(list)
    for name in amax:
        groups[fused_group(name)].append(name)
    for names in groups.values():
        scale_2 = torch.stack([codec.global_scale_of(tensors[f"{n}.weight"]) for n in names]).amax()
        input_scale = torch.stack([amax[n] for n in names]).amax() / (6 * 448)
        for n in names:
            weight = tensors[f"{n}.weight"]
            tensors[f"{n}.weight"], tensors[f"{n}.weight_scale"] = codec.quantize(weight, scale_2)
            tensors[f"{n}.weight_scale_2"] = scale_2.clone()
            tensors[f"{n}.input_scale"] = input_scale.clone()
    return tensors, sorted(amax)


def as_compressed_tensors(tensors: dict[str, torch.Tensor], layers: list[str]) -> dict[str, torch.Tensor]:
    """The same checkpoint in compressed-tensors' names, with inverse global scales of shape [1]."""
    out = dict(tensors)
    for name in layers:
        out[f"{name}.weight_packed"] = out.pop(f"{name}.weight")
        out[f"{name}.weight_global_scale"] = (1 / out.pop(f"{name}.weight_scale_2")).reshape(1)
        out[f"{name}.input_global_scale"] = (1 / out.pop(f"{name}.input_scale")).reshape(1)
    return out


def modelopt_metadata() -> dict:
    return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], "producer": {"name": "modelopt"},
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16},
                                          "input_activations": {"num_bits": 4, "type": "float", "group_size": 16},
                                          "targets": ["Linear"]}}}  # fmt: skip


def compressed_metadata() -> dict:
    half = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group", "symmetric": True}
    return {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"weights": half, "input_activations": {**half, "dynamic": "local"},
                                          "targets": ["Linear"]}}}  # fmt: skip


def write_checkpoint(
    model_dir: Path,
    path: Path,
    *,
    tensors: dict[str, torch.Tensor] | None = None,
    metadata: dict | None = None,
    hf_quant_config: bool = True,
    shards: int = 1,
) -> Path:
    """An NVFP4 checkpoint at ``path``: the files of ``model_dir`` with these tensors and this metadata (None: none)."""
    import shutil

    shutil.copytree(model_dir, path, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = nvfp4_tensors(model_dir)[0] if tensors is None else tensors
    config = json.loads((path / "config.json").read_text())
    if metadata is not None:
        config["quantization_config"] = metadata
        if hf_quant_config and metadata["quant_method"] == "modelopt":
            details = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}
            (path / "hf_quant_config.json").write_text(json.dumps({"quantization": details}))
    (path / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        return path
    weight_map = {}
    for i in range(shards):
        shard = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[i::shards]
        save_file({n: tensors[n] for n in part}, path / shard, {"format": "pt"})
        weight_map.update(dict.fromkeys(part, shard))
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path
