"""Intervals and p-values against enumeration, closed forms and published examples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resetcli.evaluation.resampling import (
    bootstrap_interval,
    detectable_difference,
    holm,
    mcnemar,
    ratio_interval,
    sign_flip_p,
)


def by_enumeration(d) -> float:
    """The definition, swap by swap, in exact numbers (d in quarters)."""
    whole = [round(4 * x) for x in d]
    swaps = itertools.product((1, -1), repeat=len(d))
    sums = [sum(s * x for s, x in zip(signs, whole, strict=True)) for signs in swaps]
    return sum(abs(s) >= abs(sum(whole)) for s in sums) / len(sums)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8))
def test_few_documents_get_the_exact_permutation_p(quarters) -> None:
    d = np.array(quarters) / 4
    assert sign_flip_p(d) == pytest.approx(by_enumeration(d), abs=1e-12)


def test_ties_are_broken_by_precision() -> None:
    d = np.array([1.0, 1.0, -1.0])
    # Sums: +-3 twice, +-1 six times, in three pairs by which of the three stands alone.
    assert sign_flip_p(d) == 1
    for alone, p in ((0, 1.0), (1, 6 / 8), (2, 4 / 8)):
        # The more precise the one that stands against the others, the nearer to 0.
        signs = np.where(np.arange(3) == alone, -1.0, 1.0)
        assert sign_flip_p(signs, precision=np.array([3.0, 2.0, 1.0])) == p
    # Never more than one step: a larger mean stays larger.
    assert sign_flip_p(np.array([1.0, 1.0, 2.0]), precision=np.array([9.0, 9.0, 0.0])) == 2 / 8
    assert sign_flip_p(np.zeros(3), precision=np.zeros(3)) == 1


def test_many_documents_get_a_sampled_one_near_the_exact() -> None:
    d = np.array([1, 1, 1, 1, 1, 1, 1, -1, -1, 1, 0.5, 0.25, -0.75, 0.5, 0, 0])
    exact = sign_flip_p(d, resamples=2**14)
    assert exact == by_enumeration(d[d != 0])
    assert sign_flip_p(d, resamples=16_000) == pytest.approx(exact, abs=0.005)
    assert sign_flip_p(d, resamples=16_000, seed=1) != sign_flip_p(d, resamples=16_000)


def test_sampled_p_is_never_zero_and_does_not_depend_on_the_order_or_the_sign() -> None:
    d = np.repeat([1.0, -1.0], [90, 2])
    assert sign_flip_p(d, resamples=1000) == 1 / 1001
    for other in (-d, d[::-1].copy()):
        assert sign_flip_p(other, resamples=1000) == 1 / 1001
    assert sign_flip_p(np.zeros(50)) == 1 == sign_flip_p(np.zeros(0))


def test_interval_with_one_sample_each_is_near_bonett_and_price() -> None:
    """The example in the manual of the R package statpsych: ci.prop.ps(.05, 12, 4, 26, 6) is 0.2548 to 0.6252."""
    d = np.repeat([0.0, -1.0, 1.0, 0.0], [12, 4, 26, 6])
    low, high = bootstrap_interval(d, step=1.0, resamples=50_000)
    assert low == pytest.approx(0.2548, abs=0.02) and high == pytest.approx(0.6252, abs=0.02)


def test_interval_of_much_data_is_near_that_of_t() -> None:
    rng = np.random.default_rng(0)
    d = np.round(rng.normal(0.05, 0.25, 400) * 8) / 8
    low, high = bootstrap_interval(d, step=1 / 8, resamples=50_000)
    half = 1.966 * d.std(ddof=1) / 20
    assert low == pytest.approx(d.mean() - half, abs=0.002) and high == pytest.approx(d.mean() + half, abs=0.002)
    assert bootstrap_interval(d, step=1 / 8, resamples=50_000) == (low, high)
    unbounded = bootstrap_interval(1000 * d, step=None, resamples=50_000)
    assert unbounded == pytest.approx((1000 * (d.mean() - half), 1000 * (d.mean() + half)), abs=2)


def test_intervals_where_resampling_says_nothing() -> None:
    bound = 1 - 0.025 ** (1 / 20)
    assert bootstrap_interval(np.zeros(20), step=0.125) == pytest.approx((-bound, bound))
    assert bootstrap_interval(np.ones(20), step=1.0) == pytest.approx((1 - 2 * bound, 1))
    assert bootstrap_interval(np.array([0.5]), step=0.5) == (-1, 1)
    assert bootstrap_interval(np.zeros(20), step=None) is None is bootstrap_interval(np.ones(1), step=None)


@given(st.integers(1, 8), st.lists(st.integers(-8, 8), min_size=2, max_size=40))
def test_interval_holds_the_mean_and_stays_in_range(k, counts) -> None:
    d = np.clip(counts, -k, k) / k
    low, high = bootstrap_interval(d, step=1 / k, resamples=200)
    assert -1 <= low <= d.mean() <= high <= 1 and low < high


def test_blocks_do_not_change_what_is_drawn(monkeypatch) -> None:
    """However little memory is used at once: intervals agree within their Monte Carlo error."""
    d = np.random.default_rng(3).choice([-1.0, 0.0, 1.0], 50)
    whole = bootstrap_interval(d, step=1.0), sign_flip_p(d)
    monkeypatch.setattr("resetcli.evaluation.resampling._BLOCK", 10_000)
    low, high = bootstrap_interval(d, step=1.0)
    assert (low, high) == pytest.approx(whole[0], abs=0.01) and sign_flip_p(d) == pytest.approx(whole[1], abs=0.02)


def test_the_detectable_difference_is_detected_in_four_of_five() -> None:
    rng = np.random.default_rng(7)
    values = np.array([-0.5, -0.25, 0, 0, 0, 0.25, 0.5])
    least = detectable_difference(np.resize(values, 98), step=0.25)
    assert least == pytest.approx((1.985 + 0.8455) * values.std() / 98**0.5, rel=0.03)
    # A shift by the least difference in units of d: quarters by lot, with that mean.
    found = []
    for _ in range(400):
        d = rng.choice(values, 98) + 0.25 * (rng.random(98) < 4 * least)
        found.append(sign_flip_p(d, resamples=999) <= 0.05)
    assert 0.7 < np.mean(found) < 0.9
    assert detectable_difference(np.zeros(1), step=1.0) is None
    # Two documents show no difference for sure, not one of 813 points.
    assert detectable_difference(np.zeros(2), step=1.0) is None
    assert detectable_difference(np.array([0.0, 50.0]), step=None) > 100
    assert 0 < detectable_difference(np.zeros(30), step=0.125) < 0.05


def test_mcnemar_by_hand() -> None:
    a = [True] * 5 + [True] * 2 + [False] * 8 + [False] * 3
    b = [True] * 5 + [False] * 2 + [True] * 8 + [False] * 3
    # 10 discordant, 2 one way: 2 (1 + 10 + 45) / 1024.
    assert mcnemar(a, b) == {"both": 5, "only_a": 2, "only_b": 8, "neither": 3, "p": 2 * 56 / 1024}
    assert mcnemar(b, a)["p"] == 2 * 56 / 1024
    assert mcnemar(a, a)["p"] == 1 and mcnemar([True, False], [False, True])["p"] == 1


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1, 1] and holm([]) == []


def test_ratio_interval_near_the_delta_method() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(50, 150, 200).astype(float)
    lost = 0.05 * tokens + rng.normal(0, 2, 200)
    ratio = lost.sum() / tokens.sum()
    half = 1.972 * (lost - ratio * tokens).std(ddof=1) / (tokens.mean() * 200**0.5)
    assert ratio_interval(lost, tokens) == pytest.approx((ratio - half, ratio + half), abs=0.0005)
    assert ratio_interval(lost[:1], tokens[:1]) is None
