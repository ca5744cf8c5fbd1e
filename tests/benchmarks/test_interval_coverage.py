"""The benchmark of intervals runs whole, small, and the docs' tables are those of its record."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("interval_coverage", ROOT / "benchmarks" / "interval_coverage.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["interval_coverage"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_runs_and_adds_up(bench) -> None:
    rng = np.random.default_rng(0)
    for found in (bench.one_run(30, 0.9, 100, rng), bench.two_runs(20, 0.5, 0.6, 100, 500, rng)):
        assert found["coverage"] + found["below"] + found["above"] == pytest.approx(1) and found["coverage"] > 0.8
    # Two problems of chance p: by hand, (0, 0.842) of none, (0, 1) of one, (0.158, 1) of both right.
    covered = bench.one_sample(2)["coverage"]
    assert covered["0.5"] == 1 and covered["0.02"] == round(1 - 0.02**2, 4) and covered["0.9"] == round(1 - 0.1**2, 4)


def test_the_docs_have_the_records_figures() -> None:
    record = json.loads((ROOT / "benchmarks/results/interval-coverage.json").read_text())
    evaluation, compare = ((ROOT / "docs" / name).read_text() for name in ("evaluation.md", "compare.md"))
    for row in record["one_run"]:
        start = f"| {row['problems']} | {row['can_be_solved']:.0%} | {row['coverage']:.1%} |".replace("%", " %")
        assert start in evaluation, start
    for row in record["one_sample"]:
        assert " | ".join(f"{100 * share:.1f} %" for share in row["coverage"].values()) in evaluation
    for row in record["two_runs"]:
        start = f"| {row['problems']} | {100 * row['differ']:.0f} % | {100 * row['gain']:.0f} | "
        assert f"{start}{100 * row['coverage']:.1f} % |" in compare, start
