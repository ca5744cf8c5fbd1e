"""Statistics against brute force, simulation and the cluster bootstrap."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resetcli.base.errors import UsageError
from resetcli.evaluation.columns import Columns
from resetcli.evaluation.statistics import clustered_interval, majority_credit, pass_at, task_statistics


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_is_the_share_of_subsets_with_a_right_one(case) -> None:
    n, c, k = case
    subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert pass_at(n, c, k) == pytest.approx(float(Fraction(sum(map(any, subsets)), len(subsets))), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 2, 5), (4, 2, 0), (0, 0, 1), (3, 4, 1), (3, -1, 1)])
def test_pass_at_refuses_what_cannot_be(n, c, k) -> None:
    with pytest.raises(UsageError):
        pass_at(n, c, k)


def expected_majority(answers, scores, draws=4000) -> float:
    """Vote, break ties by lot, look: the mean over many lots."""
    rng = np.random.default_rng(0)
    votes = ["right" if s else a for a, s in zip(answers, scores, strict=True) if s or a is not None]
    if not votes:
        return 0.0
    counts = Counter(votes)
    tied = sorted(a for a, c in counts.items() if c == max(counts.values()))
    return float(np.mean([tied[rng.integers(len(tied))] == "right" for _ in range(draws)]))


@given(st.lists(st.sampled_from([("1", 0), ("2", 0), ("3", 1), (None, 0)]), min_size=1, max_size=7))
def test_majority_is_the_mean_over_ties_broken_by_lot(samples) -> None:
    answers, scores = zip(*samples, strict=True)
    assert majority_credit(answers, scores) == pytest.approx(expected_majority(answers, scores), abs=0.04)


def test_majority_knows_one_answer_by_its_value() -> None:
    assert majority_credit(["1/2", "0.5", "3", "3", "4"], [1, 1, 0, 0, 0]) == 0.5
    assert majority_credit(["033", "33", "7"], [0, 0, 1]) == 0
    assert majority_credit([None, None, "7"], [0, 0, 1]) == 1


@pytest.mark.parametrize(("docs", "repeats", "spread"), [(30, 4, 0.3), (120, 8, 0.35), (198, 1, 0.0)])
def test_interval_agrees_with_the_cluster_bootstrap(docs, repeats, spread) -> None:
    rng = np.random.default_rng(docs)
    rate = np.clip(0.45 + spread * rng.standard_normal(docs), 0, 1)
    scores = (rng.random((docs, repeats)) < rate[:, None]).astype(float)
    means = scores.mean(1)
    boot = means[rng.integers(docs, size=(20000, docs))].mean(1)
    low, high = clustered_interval(scores.tolist())
    assert low == pytest.approx(np.quantile(boot, 0.025), abs=0.015)
    assert high == pytest.approx(np.quantile(boot, 0.975), abs=0.015)


def test_interval_covers_the_truth_under_clustering() -> None:
    """Coverage over 2,000 simulated runs of 30 problems whose difficulty varies: near 95 %."""
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(2000):
        rate = rng.beta(1, 1.5, size=30)
        low, high = clustered_interval((rng.random((30, 4)) < rate[:, None]).astype(float).tolist())
        hits += low <= 0.4 <= high
    assert 0.935 <= hits / 2000 <= 0.965


def test_interval_where_the_spread_says_nothing() -> None:
    assert clustered_interval([[1.0, 0.0]]) == (0.0, 1.0)
    assert clustered_interval([]) == (0.0, 1.0)
    low, high = clustered_interval([[0.0, 0.0]] * 20)
    # With n problems and none right, the bound p solves (1 - p)^n = 0.025.
    assert low == 0 and (1 - high) ** 20 == pytest.approx(0.025)
    assert clustered_interval([[1.0]] * 20) == pytest.approx((1 - high, 1.0))
    # All problems half right: as many others as may hide, all wrong or all right.
    assert clustered_interval([[1.0, 0.0]] * 20) == pytest.approx((0.5 - high / 2, 0.5 + high / 2))


def sample(doc, repeat, score, why, answer="1", tokens=10, finish="stop"):
    return {"doc_id": doc, "repeat": repeat, "score": score, "why": why, "answer": answer, "n_tokens": tokens,
            "finish_reason": finish}  # fmt: skip


def test_the_task_object_of_the_contract() -> None:
    samples = [sample("a", r, s, "correct" if s else "wrong", "5" if s else "6") for r, s in enumerate((1, 0, 1, 0))]
    samples += [sample("b", r, 0, why, None, 20, "length") for r, why in enumerate(("truncated", "unparsed") * 2)]
    found = task_statistics(samples, 4)
    assert found["n"] == 2 and found["repeats"] == 4
    assert found["avg@k"] == 0.25 and found["pass@k"] == 0.5 and found["maj@k"] == 0.25
    # One of two problems: 2 right of 4. pass@2 of it: 1 - C(2,2)/C(4,2) = 5/6.
    assert found["pass@"] == {"1": 0.25, "2": pytest.approx(5 / 12), "4": 0.5, "k": 0.5}
    assert found["truncated"] == found["unparsed"] == 0.25 and found["tokens_mean"] == 15 and found["errors"] == 0
    assert found["tokens_percentiles"] == {"5": 10, "25": 10, "50": 15, "75": 20, "95": 20}
    assert found["tokens_max"] == 20
    low, high = found["ci95"]
    assert low == 0 and high == 1  # means 0.5 and 0, t(1) = 12.7: cut to [0, 1]
    assert task_statistics(reversed(samples), 4) == found


def test_four_repeats_of_one_problem() -> None:
    found = task_statistics([sample("a", r, s, "correct") for r, s in enumerate((1, 0, 1, 0))], 4)
    assert (found["avg@k"], found["pass@"]["1"], found["pass@"]["4"]) == (0.5, 0.5, 1.0)


def test_a_missing_sample_is_no_zero() -> None:
    with pytest.raises(UsageError, match="document a has 1 samples, not 2"):
        task_statistics([sample("a", 0, 1, "correct")], 2)
    with pytest.raises(UsageError, match="repeats 0 to 1, each once"):
        task_statistics([sample("a", 0, 1, "correct")] * 2, 2)


def test_samples_are_read_once_and_columns_do_as_well() -> None:
    samples = [sample(d, r, (d + r) % 2, "wrong", str(r), 10 * d + r) for d in range(5) for r in range(4)]
    columns = Columns(iter(samples))
    assert len(columns) == 20 and columns.most_repeats == 4
    assert task_statistics(columns, 4) == task_statistics(iter(reversed(samples)), 4)
    table = columns.table(4)
    assert table.docs == list(range(5)) and table.tokens[3].tolist() == [30, 31, 32, 33]
    assert table.first(2).score.tolist() == table.score[:, :2].tolist() and table.first(2).repeats == 2


def test_memory_does_not_grow_by_more_than_columns() -> None:
    """100,000 samples from a generator: 5 MB of columns, and tables of some 10 MB on the way to the figures."""
    samples = (sample(f"d{i // 8}", i % 8, i % 3 == 0, "wrong", str(i % 5), i) for i in range(100_000))
    tracemalloc.start()
    found = task_statistics(samples, 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found["n"] == 12_500 and peak < 60e6


def test_interval_formula_by_hand() -> None:
    means = [0.25, 0.5, 0.75, 0.5, 0.4]
    m = sum(means) / 5
    se = math.sqrt(sum((x - m) ** 2 for x in means) / 20)
    low, high = clustered_interval([[x] for x in means])
    assert high - m == pytest.approx(2.7764451 * se, rel=1e-6) and m - low == pytest.approx(high - m)
