"""Our cache and attention against transformers' own generation, for several architectures."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from resetcli.base.errors import ResetError
from resetcli.base.reporting import CollectingReporter
from resetcli.engines.runner import ModelRunner

COMMON = dict(
    vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, max_position_embeddings=512, bos_token_id=None, eos_token_id=None, pad_token_id=0,
)  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**COMMON),
    "qwen2": Qwen2Config(**COMMON),
    "qwen3": Qwen3Config(**COMMON, head_dim=16),
    "mistral-window": MistralConfig(**COMMON, sliding_window=9),
}


def build(name: str):
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name]), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # sharper distributions: an error in attention changes the argmax
    return model.eval()


def runner_for(model, *, slots=4, packed=True, invariant=True):
    return ModelRunner(
        model, slots=slots, valid_vocab=97, packed=packed, invariant=invariant, reporter=CollectingReporter()
    )


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("packed", [True, False])
def test_decode_equals_transformers(name, packed):
    prompt = list(range(3, 20))
    with torch.inference_mode():
        sequence = build(name).generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0].tolist()
        want = build(name)(torch.tensor([sequence])).logits[0]
    runner = runner_for(build(name), packed=packed, invariant=packed)
    row = runner.row(2)
    logits = [runner.prefill(row, prompt)[0]]
    for token in sequence[len(prompt) : -1]:
        logits.append(runner.decode([row], [token])[0])
    torch.testing.assert_close(torch.stack(logits), want[len(prompt) - 1 : -1], atol=2e-4, rtol=2e-4)
    assert torch.stack(logits).argmax(-1).tolist() == sequence[len(prompt) :]


def test_long_prompt_in_chunks(monkeypatch):
    ids = torch.randint(0, 97, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    for name in ("llama", "mistral-window"):
        with torch.inference_mode():
            want = build(name)(torch.tensor([ids])).logits[0, -1]
        monkeypatch.setattr("resetcli.engines.runner.PREFILL_CHUNK", 16)
        runner = runner_for(build(name))
        torch.testing.assert_close(runner.prefill(runner.row(0), ids)[0], want, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", ["llama", "mistral-window"])
def test_logits_do_not_depend_on_company(name):
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(0, 97, (n,), generator=generator).tolist() for n in (5, 40, 1, 17, 300, 9, 2, 33)]
    feed = torch.randint(0, 97, (30,), generator=generator).tolist()
    runner = runner_for(build(name), slots=8)

    def alone(prompt):
        row = runner.row(0)
        out = [runner.prefill(row, prompt)[0]] + [runner.decode([row], [t])[0].clone() for t in feed]
        row.release()
        return torch.stack(out)

    single = [alone(p) for p in prompts]
    rows = [runner.row(i) for i in range(8)]
    together = [[runner.prefill(row, p)[0]] for row, p in zip(rows, prompts, strict=True)]
    order = list(range(8))
    for n, token in enumerate(feed):
        order = order[1:] + order[:1] if n % 3 else order[::-1]
        logits = runner.decode([rows[i] for i in order], [token] * 8)
        for at, i in enumerate(order):
            together[i].append(logits[at].clone())
    for i in range(8):
        assert torch.equal(single[i], torch.stack(together[i])), f"prompt {i}"


def test_one_by_one_where_products_depend_on_the_batch(monkeypatch):
    monkeypatch.setattr("resetcli.engines.packing.settle_rows", lambda *a, **k: False)
    reporter = CollectingReporter()
    runner = ModelRunner(build("llama"), slots=4, valid_vocab=97, packed=True, invariant=True, reporter=reporter)
    assert runner.rows_per_pass == 1 and "one by one" in reporter.infos[0]
    rows = [runner.row(i) for i in range(3)]
    for row in rows:
        runner.prefill(row, [1, 2, 3])
    logits = runner.decode(rows, [4, 4, 5])
    assert logits.shape == (3, 97) and torch.equal(logits[0], logits[1]) and not torch.equal(logits[0], logits[2])


def test_a_layer_with_bad_weights_is_named():
    model = build("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 5] = torch.nan
    runner = runner_for(model, packed=False, invariant=False)
    assert runner.first_bad_layer([1, 2, 3]) == "model.layers.1.mlp.down_proj"


def test_models_outside_the_interface_are_refused():
    from transformers import MambaConfig

    config = MambaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=2, state_size=4)
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ResetError, match="mamba"):
        runner_for(model)
