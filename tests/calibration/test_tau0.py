"""tau_0 over a protocol double: which tokens count, which seeds and settings are used, what fails and how."""

from __future__ import annotations

import numpy as np
import pytest
from calibration_double import NumpyEngine, problem_set

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import CollectingReporter
from resetcli.base.seeds import sample_seed
from resetcli.calibration.tau0 import calibrate


def test_tau_0_is_the_80th_percentile_of_all_tokens() -> None:
    engine = NumpyEngine()
    result = calibrate(engine, problem_set(), seed=7, max_new_tokens=512)
    requests, settings = engine.calls[0]
    replay = {done.request_id: done for done in NumpyEngine().generate(requests, settings, keep_entropies=True)}
    pooled = np.concatenate([replay[str(i)].entropies for i in range(5)])
    assert result.tau_0 == np.percentile(pooled, 80)
    assert result.tokens == len(pooled) == sum(done.n_tokens for done in replay.values())
    assert result.entropies().tolist() == pooled.tolist()
    assert [answer.problem_id for answer in result.answers] == [f"id-{i}" for i in range(5)]
    assert result.percentiles["80"] == result.tau_0


def test_requests_follow_the_contract() -> None:
    engine = NumpyEngine(context=300)
    calibrate(engine, problem_set(3), seed=7)
    requests, settings = engine.calls[0]
    assert [request.seed for request in requests] == [sample_seed(7, "calibrate", i) for i in range(3)]
    assert (settings.name, settings.temperature, settings.top_p) == ("fixed", 0.6, 0.95)
    assert all(thinking for _, thinking in engine.chats)
    asked = [[{"role": "user", "content": f"problem {i}"}] for i in range(3)]
    assert [messages for messages, _ in engine.chats] == asked
    assert {request.max_new_tokens for request in requests} == {300 - len("problem 0")}


def test_section_has_the_contract_keys_and_cut_answers_warn() -> None:
    reporter = CollectingReporter()
    result = calibrate(NumpyEngine(), problem_set(), max_new_tokens=6, reporter=reporter)
    assert result.cut > 0
    assert reporter.warnings == result.warnings and f"{result.cut} of 5" in result.warnings[0]
    section = result.section()
    assert {"percentile", "problems", "tokens", "entropy_percentiles", "dataset", "problem_ids", "temperature", "seed",
            "model_fingerprint", "versions"} <= set(section)  # fmt: skip
    assert section["truncated"] == result.cut and section["dataset_sha256"] == "a" * 64
    assert "tau_0" in result.render() and "bootstrap over problems" in result.render(unicode=False)


def test_nan_is_an_error_with_its_position() -> None:
    fault = ("1", {"finish_reason": "error", "error": "NaN logits at position 17"})
    with pytest.raises(ResetError, match=r"problem id-1: NaN logits at position 17"):
        calibrate(NumpyEngine(fault=fault), problem_set())
    broken = np.array([0.1, np.nan, 0.2])
    with pytest.raises(ResetError, match=r"problem id-2: the entropy at position 1 is nan"):
        calibrate(NumpyEngine(fault=("2", {"entropies": broken, "token_ids": [1, 2, 3]})), problem_set())


def test_an_engine_without_entropies_is_named() -> None:
    with pytest.raises(ResetError, match="cannot keep entropies"):
        calibrate(NumpyEngine(fault=("0", {"entropies": None})), problem_set())


def test_bad_calls() -> None:
    with pytest.raises(UsageError, match="percentile"):
        calibrate(NumpyEngine(), problem_set(), percentile=100)
    with pytest.raises(UsageError, match="--max-new-tokens"):
        calibrate(NumpyEngine(), problem_set(), max_new_tokens=0)
    with pytest.raises(UsageError, match="no calibration problems"):
        calibrate(NumpyEngine(), problem_set(0))
    with pytest.raises(ResetError, match="the context of Some-Model-nvfp4 is 9"):
        calibrate(NumpyEngine(context=9), problem_set())
