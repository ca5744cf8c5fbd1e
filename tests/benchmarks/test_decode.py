"""The decode benchmark runs whole on tiny models and records what it must; its speeds mean nothing there."""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "decode.py"


@functools.cache
def load():
    """The script as a module; dataclasses look their module up by name."""
    spec = importlib.util.spec_from_file_location("decode_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = sys.modules["decode_benchmark"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def decode():
    module = load()
    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)


def test_all_comparisons_run(decode, tiny_model_dir: Path, tiny_checkpoint: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "decode.json"
    models = ["--bf16", tiny_model_dir, "--nvfp4", tiny_checkpoint]
    words = [*models, "--tokens", 5, "--turn", 2, "--pairs", 2, "--threads", 1, "-o", out]
    assert decode.main([str(word) for word in words]) == 0
    found = json.loads(out.read_text())
    assert [c["name"] for c in found["comparisons"]] == [c.name for c in decode.COMPARISONS]
    for record, plan in zip(found["comparisons"], decode.COMPARISONS, strict=True):
        assert len(record["a"]["tokens_per_s"]["all"]) == len(record["ratio"]["all"]) == 2
        first = record["b"]["tokens_per_s"]["all"][0] / record["a"]["tokens_per_s"]["all"][0]
        assert record["ratio"]["all"][0] == first
        for at, pair in enumerate(record["turns"]):
            for name in "ab":
                # Of each request's 3 + 2 tokens, one a turn comes out of the prompt.
                assert [turn["tokens"] for turn in pair[name]] == [2 * record[name]["batch"], record[name]["batch"]]
                assert all(turn["prefill_seconds"] > 0 for turn in pair[name])
                total = sum(turn["tokens"] for turn in pair[name]) / sum(turn["seconds"] for turn in pair[name])
                assert record[name]["tokens_per_s"]["all"][at] == total
        assert record["met"] == (record["ratio"]["median"] >= plan.goal)
    assert {"commit", "machine", "versions", "models", "method", "load_before", "load_after"} <= set(found)
    assert found["models"]["bf16"]["fingerprint"] != found["models"]["nvfp4"]["fingerprint"]
    assert capsys.readouterr().out.count("goal") == len(decode.COMPARISONS)


def test_goals_are_those_of_the_plan(decode) -> None:
    assert {c.name: c.goal for c in decode.COMPARISONS} == {
        "nvfp4-vs-bf16": 0.85, "batch8-vs-batch1": 3.0, "invariant-vs-not": 0.9, "policy-batch1": 0.97,
        "policy-batch8": 0.97,
    }  # fmt: skip
    options = decode.parse([])
    assert (options.tokens, options.turn, options.pairs, options.threads) == (256, 64, 5, 2)


@pytest.mark.parametrize("words", [["--pairs", "0"], ["--threads", "0"], ["--tokens", "1"], ["--turn", "1"]])
def test_bad_numbers_are_usage_errors(decode, words) -> None:
    with pytest.raises(SystemExit) as caught:
        decode.parse(words)
    assert caught.value.code == 2


@given(st.integers(2, 600), st.integers(2, 600))
def test_turns_add_up(tokens: int, most: int) -> None:
    lengths = load().turns(tokens, most)
    assert sum(lengths) == tokens and max(lengths) - min(lengths) <= 1 and min(lengths) >= 2
    assert max(lengths) <= max(most, 3), "3 only where 2 do not divide"
    if tokens % most == 0:
        assert set(lengths) == {most}


@pytest.mark.parametrize(("first", "order"), [("a", "abbaabba"), ("b", "baabbaab")])
def test_turns_alternate_and_both_sides_draw_the_same_seeds(decode, first, order) -> None:
    seen = []

    def side(name):
        def take(length: int, turn: int):
            seen.append((name, length, turn))
            return decode.Turn(length, 1.0, 0.0)

        return take

    pair = decode.run_pair({"a": side("a"), "b": side("b")}, [64] * 4, first=first, number=3)
    assert "".join(name for name, _, _ in seen) == order
    for name in "ab":
        assert [turn for n, _, turn in seen if n == name] == [13, 14, 15, 16]
    assert len(pair["a"]) == len(pair["b"]) == 4


def test_a_neighbours_load_for_one_turn_moves_one_pair_only(decode) -> None:
    """Speeds are total tokens over total seconds; the result is the median of the ratios within pairs."""
    turn = decode.Turn
    calm = {"a": [turn(60, 6, 1), turn(60, 4, 1)], "b": [turn(60, 5, 1), turn(60, 5, 1)]}
    disturbed = {"a": [turn(60, 6, 1), turn(60, 4, 1)], "b": [turn(60, 25, 1), turn(60, 5, 1)]}
    speeds, ratio = decode.speeds_and_ratio([calm, disturbed, calm])
    assert speeds["a"]["all"] == [12, 12, 12] and speeds["b"]["all"] == [12, 4, 12]
    assert ratio["all"] == [1, pytest.approx(1 / 3), 1] and (ratio["median"], ratio["min"]) == (1, pytest.approx(1 / 3))


def test_the_clock_counts_prefill_alone_and_leaves_no_trace(decode) -> None:
    class Runner:
        def prefill(self, ids, *, keep=1):
            time.sleep(0.02)
            return len(ids) + keep

    runner = Runner()
    with decode.prefill_clock(runner) as seconds:
        assert runner.prefill([1, 2], keep=3) == 5 and runner.prefill([1]) == 2
    assert len(seconds) == 2 and min(seconds) >= 0.02
    assert "prefill" not in vars(runner)
