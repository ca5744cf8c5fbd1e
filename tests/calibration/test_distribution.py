"""Percentiles, bootstrap and histogram against NumPy computed the long way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resetcli.calibration.distribution import (
    PERCENTILES,
    Bootstrap,
    bootstrap_percentile,
    entropy_percentiles,
    histogram,
    percentile,
    render_histogram,
)


@given(st.lists(st.floats(0, 12), min_size=1, max_size=60), st.floats(1, 99))
def test_percentile_is_linear_interpolation_between_order_statistics(values: list[float], q: float) -> None:
    place = (len(values) - 1) * q / 100
    ranked = sorted(values)
    low, high = ranked[int(place)], ranked[min(int(place) + 1, len(values) - 1)]
    assert percentile(np.array(values), q) == pytest.approx(low + (high - low) * (place - int(place)), abs=1e-9)


def test_reported_percentiles() -> None:
    values = np.random.default_rng(3).exponential(size=1000)
    found = entropy_percentiles(values)
    assert list(found) == ["50", "60", "70", "75", "80", "85", "90", "95", "99"]
    assert [found[str(q)] for q in PERCENTILES] == pytest.approx(np.percentile(values, PERCENTILES).tolist())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.floats(0, 10), max_size=30), min_size=2, max_size=6).filter(lambda g: any(g)),
    st.integers(1, 99),
    st.integers(0, 5),
)
def test_bootstrap_equals_concatenating_the_drawn_problems(groups: list[list[float]], q: int, seed: int) -> None:
    """Rule: the weighted percentile is that of the concatenation, draw by draw."""
    arrays = [np.array(group, dtype=np.float64) for group in groups]
    rng = np.random.default_rng(seed)
    slow = []
    for _ in range(25):
        pooled = np.concatenate([arrays[i] for i in rng.integers(len(arrays), size=len(arrays))])
        if len(pooled):
            slow.append(np.percentile(pooled, q))
    fast = bootstrap_percentile(arrays, q, seed=seed, draws=25)
    assert fast.draws == len(slow)
    if slow:
        assert fast.low == pytest.approx(np.percentile(slow, 2.5), abs=1e-9)
        assert fast.high == pytest.approx(np.percentile(slow, 97.5), abs=1e-9)
    if len(slow) > 1:
        assert fast.std == pytest.approx(np.std(slow, ddof=1), abs=1e-9)


def test_bootstrap_of_one_problem_claims_nothing() -> None:
    assert bootstrap_percentile([np.ones(10)], 80, seed=0) == Bootstrap(0, None, None, None)
    assert bootstrap_percentile([np.ones(10)], 80, seed=0).to_json() == {"draws": 0, "ci95": None, "std": None}


def test_bootstrap_is_seeded() -> None:
    rng = np.random.default_rng(1)
    groups = [rng.exponential(scale, 200) for scale in (0.5, 1.0, 2.0)]
    first = bootstrap_percentile(groups, 80, seed=4, draws=100)
    assert first == bootstrap_percentile(groups, 80, seed=4, draws=100)
    assert first != bootstrap_percentile(groups, 80, seed=5, draws=100)


@given(st.lists(st.floats(0, 13), min_size=1, max_size=200))
def test_histogram_keeps_every_token(values: list[float]) -> None:
    hist = histogram(np.array(values))
    assert sum(hist.counts) == len(values)
    assert len(hist.counts) <= 20 and len(hist.edges) == len(hist.counts) + 1
    assert hist.edges[0] == 0 and hist.edges[-1] >= max(values) - 1e-9


def test_rendering_is_plain_linear_and_marks_tau_0() -> None:
    values = np.array([0.01] * 80 + [0.61] * 19 + [1.99])
    for unicode in (True, False):
        text = render_histogram(histogram(values), 0.61, width=20, unicode=unicode)
        lines = text.splitlines()
        assert "\r" not in text and "\x1b" not in text
        assert text.isascii() != unicode
        marked = [line for line in lines if "tau_0 0.6100" in line]
        assert len(marked) == 1 and "19.0 %" in marked[0]
        bar = "█" if unicode else "#"
        assert lines[0].count(bar) == 20 and marked[0].count(bar) in (4, 5)
        assert sum(line.count("%") for line in lines) == len(lines)
