"""The counts that the docs give for our scoring and lm-eval's come out of both, run here on the golden file."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("scoring_peers", ROOT / "benchmarks" / "scoring_peers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_counts_are_those_of_the_record_and_of_the_docs(bench):
    found = bench.compare()
    record = json.loads((ROOT / "benchmarks" / "results" / "scoring-peers.json").read_text())
    assert found == record["results"]
    assert sum(row["right"] for row in found if row["scoring"] == "resetcli") == 200
    docs = (ROOT / "docs" / "scoring.md").read_text("utf-8").replace("`", "")
    for row in found:
        cells = [str(row[key]) for key in ("task", "scoring", "rows", "right", "credited", "missed")]
        assert f"| {' | '.join(cells)} |" in docs


def test_their_side_is_their_own(bench):
    """Outputs in the one form that each of lm-eval's scorings expects score full there; other outputs do not."""
    maths = [
        {"id": "a", "text": "So it is $204$.", "target": "204"},
        {"id": "b", "text": "So it is $7$.", "target": "204"},
    ]
    assert bench.their_scores("math", maths, stops=False) == {"aime": [1, 0]}
    choices = ["one", "two", "three", "four"]
    letters = [
        {"id": "a", "text": "The answer is (B).", "target": "B", "choices": choices},
        {"id": "b", "text": "The answer is (C).", "target": "B", "choices": choices},
        {"id": "c", "text": "It is two.</s> The answer is (D).", "target": "B", "choices": choices},
    ]
    name = "gpqa_diamond_cot_zeroshot"
    scores = bench.their_scores("letters", letters, stops=True)
    assert scores == {f"{name}, strict-match": [1, 0, 0], f"{name}, flexible-extract": [1, 0, 1]}
