"""The decode benchmark runs whole on tiny models and records what it must; its speeds mean nothing there."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "decode.py"


@pytest.fixture
def decode(monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("decode_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "decode_benchmark", module)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)


def test_all_comparisons_run(decode, tiny_model_dir: Path, tiny_checkpoint: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "decode.json"
    models = ["--bf16", tiny_model_dir, "--nvfp4", tiny_checkpoint]
    words = [*models, "--tokens", 4, "--pairs", 2, "--threads", 1, "-o", out]
    assert decode.main([str(word) for word in words]) == 0
    found = json.loads(out.read_text())
    assert [c["name"] for c in found["comparisons"]] == [c.name for c in decode.COMPARISONS]
    for record, plan in zip(found["comparisons"], decode.COMPARISONS, strict=True):
        assert len(record["a"]["tokens_per_s"]["all"]) == len(record["ratio"]["all"]) == 2
        first = record["b"]["tokens_per_s"]["all"][0] / record["a"]["tokens_per_s"]["all"][0]
        assert record["ratio"]["all"][0] == first
        assert record["met"] == (record["ratio"]["median"] >= plan.goal)
    assert {"commit", "machine", "versions", "models", "method", "load_before"} <= set(found)
    assert found["models"]["bf16"]["fingerprint"] != found["models"]["nvfp4"]["fingerprint"]
    assert capsys.readouterr().out.count("goal") == len(decode.COMPARISONS)


def test_goals_are_those_of_the_plan(decode) -> None:
    assert {c.name: c.goal for c in decode.COMPARISONS} == {
        "nvfp4-vs-bf16": 0.85, "batch8-vs-batch1": 3.0, "invariant-vs-not": 0.9, "policy-batch1": 0.97,
        "policy-batch8": 0.97,
    }  # fmt: skip
    options = decode.parse([])
    assert (options.tokens, options.pairs, options.threads) == (256, 5, 2)


def test_bad_numbers_are_usage_errors(decode) -> None:
    with pytest.raises(SystemExit) as caught:
        decode.parse(["--pairs", "0"])
    assert caught.value.code == 2
