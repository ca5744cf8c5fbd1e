"""The engine on a GPU: captured decode steps, cache growth, company; skipped where torch sees none."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

from resetcli.base.reporting import CollectingReporter
from resetcli.engines.factory import EngineOptions, open_engine
from resetcli.engines.protocol import Request
from resetcli.engines.runner import ModelRunner
from resetcli.policy.settings import PolicySettings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

COMMON = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": 0,
}  # fmt: skip
CONFIGS = {"llama": LlamaConfig(**COMMON), "mistral-window": MistralConfig(**COMMON, sliding_window=50)}


def build(name: str):
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name]), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model.cuda().eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_captured_decode_equals_transformers_while_the_cache_grows(name):
    torch.backends.cuda.matmul.allow_tf32 = False
    prompts = [list(range(3, 20)), list(range(40, 90)) * 5, [7]]
    steps = 300  # past two doublings of the cache
    sequences, wanted = [], []
    for prompt in prompts:
        with torch.inference_mode():
            model = build(name)
            ids = model.generate(torch.tensor([prompt]).cuda(), max_new_tokens=steps, do_sample=False)[0]
            wanted.append(model(ids[None]).logits[0, len(prompt) - 1 : -1])
            sequences.append(ids.tolist())
    reporter = CollectingReporter()
    runner = ModelRunner(build(name), slots=4, valid_vocab=97, packed=False, invariant=False, reporter=reporter)
    rows = [runner.row(slot) for slot in (2, 0, 3)]
    got = [[runner.prefill(row, prompt)[0].clone()] for row, prompt in zip(rows, prompts, strict=True)]
    for step in range(steps - 1):
        tokens = [sequence[len(prompt) + step] for sequence, prompt in zip(sequences, prompts, strict=True)]
        logits = runner.decode(rows, tokens)
        for out, row in zip(got, rows, strict=True):
            out.append(logits[row.slot].clone())
    assert runner._graph is not None and not reporter.warnings
    for out, want in zip(got, wanted, strict=True):
        torch.testing.assert_close(torch.stack(out), want, atol=2e-3, rtol=2e-3)


def test_requests_come_and_go(tiny_checkpoint):
    engine = open_engine(EngineOptions(tiny_checkpoint, batch_size=4, dtype="float32"))
    assert engine.info.device == "cuda" and not engine.info.batch_invariant
    settings = PolicySettings(name="reset", tau_0=3.0, tau_0_source="option")
    ids = tuple(engine.encode_chat([{"role": "user", "content": "What is 2 plus 3?"}]))
    requests = [Request(f"r{i}", ids, i, 20 + 7 * i, ignore_eos=True) for i in range(12)]
    events = []
    first = {c.request_id: c.token_ids for c in engine.generate(requests, settings, on_token=events.append)}
    again = {c.request_id: c.token_ids for c in engine.generate(requests, settings)}
    assert len(first) == 12 and first == again
    assert [len(first[f"r{i}"]) for i in range(12)] == [20 + 7 * i for i in range(12)]
    assert len(events) == sum(map(len, first.values()))


def test_nan_fails_one_and_leaves_no_trace(tiny_checkpoint):
    engine = open_engine(EngineOptions(tiny_checkpoint, batch_size=2, dtype="float32"))
    model = engine.runner.model
    # Untied, before any graph holds the old weight: a NaN row of lm_head would fail every request.
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    settings = PolicySettings(name="fixed", temperature=1.0)
    good = Request("good", (5, 6, 7, 8), 1, 30, ignore_eos=True)
    clean = next(iter(engine.generate([good], settings))).token_ids
    used = {5, 6, 7, 8, *clean}
    poison = next(t for t in range(engine.info.vocab_size) if t not in used)
    with torch.no_grad():
        model.get_input_embeddings().weight[poison] = torch.nan
    bad = Request("bad", (5, poison), 2, 30, ignore_eos=True)
    done = {c.request_id: c for c in engine.generate([bad, good], settings)}
    assert done["bad"].finish_reason == "error" and done["good"].token_ids == clean
    after = {
        c.request_id: c
        for c in engine.generate([good, bad, Request("b", (5, 6, 7, 8), 1, 30, ignore_eos=True)], settings)
    }
    assert after["good"].token_ids == clean == after["b"].token_ids
