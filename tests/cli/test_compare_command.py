"""``reset compare`` as a user types it, on two small runs."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from simulated_runs import write_run


@pytest.fixture
def runs(tmp_path):
    rng = np.random.default_rng(0)
    for policy in ("fixed", "greedy"):
        write_run(tmp_path / policy, {"own": rng.integers(0, 2, (3, 2))}, policy=policy, limit=3)


def test_compare(reset, runs) -> None:
    ran = reset("compare", "fixed", "greedy")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].startswith("A ") and "(limited)" in lines[0]
    assert any(line.startswith("differ in: ") and "policy.own.name fixed, greedy" in line for line in lines)
    assert any(line.startswith("avg@k") for line in lines) and "3 problems, 2 samples each" in ran.out
    assert "warning: fixed has chosen documents of its tasks only" in ran.err

    ran = reset("compare", "fixed", "greedy", "--json", "--quiet", "--seed", 3)
    document = json.loads(ran.out)
    assert document["seed"] == 3 and document["comparisons"][0]["task"] == "own"
    assert all(run["limited"] for run in document["runs"])

    ran = reset("compare", "fixed", "greedy", "--format", "csv", "--labels", "F,G@other,")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert [row["method"] for row in rows] == ["F", "G"] and rows[1]["model"] == "other" and rows[1]["limited"] == "1"


def test_refusals_are_one_line(reset, runs) -> None:
    ran = reset("compare", "fixed", "nothing")
    assert ran.code == 1 and ran.out == "" and "nothing is not the folder of an evaluation run" in ran.error
    ran = reset("compare", "fixed", "greedy", "--pass-at", 3)
    assert ran.code == 2 and "pass@3 needs at least 3 samples per problem" in ran.error
    ran = reset("compare", "fixed")
    assert ran.code == 2 and "two runs or more" in ran.error
