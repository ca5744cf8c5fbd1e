"""Calibration end to end on tiny models and the real engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from calibration_double import problem_set

from resetcli.calibration.compare import compare_entropies, render_comparison
from resetcli.calibration.record import config_directory, save_calibration
from resetcli.calibration.t_low import select_t_low
from resetcli.calibration.tau0 import calibrate
from resetcli.engines.factory import EngineOptions, open_engine
from resetcli.policy.config import load_config
from resetcli.policy.settings import PolicySettings


@pytest.fixture(scope="module")
def engines(tiny_checkpoint: Path, tiny_model_dir: Path):
    paths = (tiny_checkpoint, tiny_model_dir)
    opened = [open_engine(EngineOptions(path, device="cpu", batch_size=3)) for path in paths]
    yield opened
    for engine in opened:
        engine.close()


def test_entropies_are_those_of_an_independent_forward_pass(engines, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Rule: tau_0 equals the percentile of teacher-forced entropies of the same tokens; the BF16 model differs."""
    nvfp4, bf16 = engines
    result = calibrate(nvfp4, problem_set(4), seed=3, max_new_tokens=24, draws=50)
    assert 4 <= result.tokens <= 96
    again = np.concatenate([
        nvfp4.teacher_force([*a.prompt_ids, *a.token_ids], start=len(a.prompt_ids)).entropy for a in result.answers
    ])  # fmt: skip
    assert result.entropies() == pytest.approx(again, abs=2e-4)
    assert result.tau_0 == pytest.approx(np.percentile(again, 80), abs=2e-4)

    found = compare_entropies(result, bf16)
    assert found["tokens"] == result.tokens and found["mean_bf16"] != found["mean_nvfp4"]
    assert f"{result.tokens} tokens" in render_comparison(found)

    assert config_directory(tiny_checkpoint, nvfp4=True, output=tmp_path) == tmp_path
    save_calibration(result, tmp_path, compare=found)
    config = load_config(tmp_path)
    assert config is not None and config.tau_0 == result.tau_0
    assert config.calibration["model_fingerprint"] == nvfp4.info.fingerprint


def test_the_same_seed_gives_the_same_tau_0(engines) -> None:
    one, two, other = (
        calibrate(engines[0], problem_set(3), seed=seed, max_new_tokens=16, draws=10) for seed in (1, 1, 2)
    )
    assert one.entropies().tolist() == two.entropies().tolist() and one.tau_0 == two.tau_0
    assert one.entropies().tolist() != other.entropies().tolist()


def test_t_low_on_the_real_engine(engines) -> None:
    """A scorer that likes short texts is obeyed; the point is that real completions reach it."""
    seen: list[tuple[str, str, str]] = []

    def score(text: str, target: str, finish_reason: str) -> float:
        seen.append((text, target, finish_reason))
        return float(len(text) % 2)

    settings = PolicySettings(tau_0=1.0)
    choice = select_t_low(engines[0], ["a", "b"], ["1", "2"], [0.1, 0.4], task="aime", settings=settings, score=score,
                          repeats=2, max_new_tokens=8)  # fmt: skip
    assert len(seen) == 8 and {target for _, target, _ in seen} == {"1", "2"}
    assert choice.t_low in (0.1, 0.4) and choice.scores[choice.t_low] == max(choice.scores.values())
