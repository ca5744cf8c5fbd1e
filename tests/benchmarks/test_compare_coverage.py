"""The coverage benchmark runs whole, and at a tenth of its size intervals and p-values hold what they promise."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "compare_coverage.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("compare_coverage_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = sys.modules["compare_coverage_benchmark"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_simulated_difference_is_the_stated_one(bench) -> None:
    rng = np.random.default_rng(0)
    for difference, spread in ((0.0, 0.2), (0.05, 0.05)):
        a, b = bench.simulate(400_000, 2, difference, spread, rng)
        # Standard error of the difference of two means of 800,000 samples: below 0.0008.
        assert (b.mean() - a.mean()) == pytest.approx(difference, abs=0.0032)
    with pytest.raises(ValueError, match="leave"):
        bench.simulate(10, 1, 0.1, 0.1, rng)


def test_coverage_and_size(bench) -> None:
    """200 simulations each: 95 % intervals cover in 91 to 99 % (three standard errors), p-values are uniform."""
    apart = bench.run((40, 4, 0.04, 0.05), 0, 200, 1000, problems=20_000)["metrics"]
    alike = bench.run((40, 4, 0.0, 0.1), 1, 200, 1000, problems=20_000)["metrics"]
    for found in (apart, alike):
        assert 0.905 <= found["avg@k"]["coverage"] <= 0.99
        assert all(m["coverage"] >= 0.905 for m in found.values())
    p = alike["avg@k"]
    assert p["p_at_most"]["0.05"] <= 0.1 and 0.37 <= p["p_at_most"]["0.5"] <= 0.61
    assert p["ks_distance"] <= 1.63 / 200**0.5 + p["largest_step"]
    assert apart["avg@k"]["p_at_most"]["0.05"] > p["p_at_most"]["0.05"]
