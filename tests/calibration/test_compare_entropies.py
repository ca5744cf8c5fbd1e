"""Entropy movement under quantization: groups, shares and crossings against figures worked by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from calibration_double import NumpyEngine, problem_set

from resetcli.base.errors import ResetError, UsageError
from resetcli.calibration.compare import compare_arrays, compare_entropies, render_comparison
from resetcli.calibration.tau0 import calibrate

BF16 = np.array([0.1, 0.2, 0.4, 0.9, 1.5])
NVFP4 = np.array([0.2, 0.1, 0.7, 0.3, 1.9])


def test_groups_by_hand() -> None:
    found = compare_arrays(BF16, NVFP4, 0.5)
    low, high = found["groups"]["bf16"]["low"], found["groups"]["bf16"]["high"]
    assert (low["tokens"], high["tokens"]) == (3, 2)
    assert low["mean_bf16"] == pytest.approx(0.7 / 3) and low["mean_nvfp4"] == pytest.approx(1.0 / 3)
    assert low["mean_change"] == pytest.approx(0.1) and low["median_change"] == pytest.approx(0.1)
    assert low["raised"] == pytest.approx(2 / 3) and low["crossed"] == pytest.approx(1 / 3)
    assert high["mean_change"] == pytest.approx(-0.1) and high["crossed"] == 0.5
    assert found["crossed_up"] == 0.2 and found["crossed_down"] == 0.2
    assert found["tau_0_bf16"] == pytest.approx(np.percentile(BF16, 80))
    assert found["groups"]["nvfp4"]["low"]["tokens"] == 3 and found["groups"]["mean"]["low"]["tokens"] == 2


def test_an_empty_group_has_nulls_and_still_renders() -> None:
    found = compare_arrays(BF16, NVFP4, 5.0)
    assert found["groups"]["bf16"]["high"]["tokens"] == 0 and found["groups"]["bf16"]["high"]["mean_change"] is None
    assert "high by bf16" in render_comparison(found)


def test_symmetric_noise_moves_nothing_when_split_by_the_mean() -> None:
    """Rule: with the same noise on both sides, a split by one side shows drift and the split by the mean does not."""
    rng = np.random.default_rng(0)
    truth = rng.exponential(1.0, 200_000)
    one, two = (truth + rng.normal(0, 0.3, truth.size) for _ in range(2))
    groups = compare_arrays(one, two, 1.0)["groups"]
    assert groups["bf16"]["low"]["mean_change"] > 0.02 and groups["bf16"]["high"]["mean_change"] < -0.02
    assert abs(groups["mean"]["low"]["mean_change"]) < 0.005 and abs(groups["mean"]["high"]["mean_change"]) < 0.005


def test_the_same_tokens_are_forced_in_order() -> None:
    result = calibrate(NumpyEngine(), problem_set())
    found = compare_entropies(result, NumpyEngine(nvfp4=False))
    tokens = np.concatenate([answer.token_ids for answer in result.answers])
    assert found["tokens"] == result.tokens and found["mean_bf16"] == pytest.approx(np.mean(tokens / 300))
    assert found["mean_nvfp4"] == pytest.approx(result.entropies().mean())


def test_faults_are_named() -> None:
    result = calibrate(NumpyEngine(), problem_set())
    other = NumpyEngine(nvfp4=False)
    other.info = dataclasses.replace(other.info, vocab_size=301)
    with pytest.raises(UsageError, match="301 tokens in its vocabulary"):
        compare_entropies(result, other)
    with pytest.raises(ResetError, match="position 0 of calibration problem id-0"):
        compare_entropies(result, NumpyEngine(nvfp4=False, shift=float("nan")))
