"""Settings: ranges by option name, what outranks what, and a header that shows only what is used."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from resetcli.base.errors import UsageError
from resetcli.base.reporting import CollectingReporter
from resetcli.policy.config import ResetConfig
from resetcli.policy.settings import ESTIMATORS, POLICIES, PolicySettings, resolve_settings

CONFIG = ResetConfig(tau_0=0.7, t_low=0.2, t_high=0.9, window=16, top_p=0.9, t_low_by_task={"aime": 0.4})


def resolve(**options) -> PolicySettings:
    return resolve_settings(**({"nvfp4": True, "model_name": "mine", "config": None} | options))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tau0": -0.1}, "--tau0 must be between 0"), ({"tau0": math.nan}, "--tau0"), ({"tau0": math.inf}, "--tau0"),
        ({"t_low": 0.9, "t_high": 0.5}, "--t-low 0.9 must not be above --t-high 0.5"), ({"t_low": -0.5}, "--t-low"),
        ({"t_high": math.nan}, "--t-high"), ({"window": 0}, "--window"), ({"window": -3}, "--window"),
        ({"temperature": -1.0, "policy": "fixed"}, "--temperature"), ({"top_p": 0.0}, "--top-p"),
        ({"top_p": 1.5}, "--top-p"), ({"top_k": -1}, "--top-k"), ({"min_p": 1.5}, "--min-p"),
        ({"policy": "rset"}, "did you mean reset"), ({"estimator": "hybird"}, "did you mean hybrid"),
    ],
)  # fmt: skip
def test_refused_by_name(options, named) -> None:
    with pytest.raises(UsageError, match=named):
        resolve(**options)


def test_a_policy_with_tau_0_wants_one() -> None:
    with pytest.raises(UsageError, match="reset calibrate"):
        PolicySettings(name="fixed-threshold").validate()
    for name in set(POLICIES) - {"reset", "fixed-threshold"}:
        PolicySettings(name=name).validate()


def test_rank_of_tau_0_and_its_source() -> None:
    reporter = CollectingReporter()
    qwen = "nvidia/Qwen3-14B-NVFP4"
    options = {"model_name": qwen, "config": CONFIG, "reporter": reporter}
    found = resolve(**options, tau0=0.3)
    assert (found.tau_0, found.tau_0_source) == (0.3, "option")
    found = resolve(**options)
    assert (found.tau_0, found.tau_0_source, found.t_low, found.t_high) == (0.7, "reset_config.json", 0.2, 0.9)
    assert (found.window, found.top_p) == (16, 0.9)
    assert resolve(**options, task="aime").t_low == 0.4 and resolve(**options, task="gpqa").t_low == 0.2
    assert resolve(**options, task="aime", t_low=0.3).t_low == 0.3
    found = resolve(model_name=qwen, reporter=reporter)
    assert (found.tau_0, found.t_low) == (0.4863, 0.3) and found.tau_0_source == "paper table (Qwen3-14B)"
    assert reporter.warnings == []
    found = resolve(reporter=reporter)
    assert (found.tau_0, found.t_low, found.tau_0_source) == (0.6, 0.1, "default")
    assert len(reporter.warnings) == 1 and "reset calibrate" in reporter.warnings[0]


def test_default_policy_follows_the_checkpoint() -> None:
    assert resolve().name == "reset" and resolve(nvfp4=False).name == "fixed"
    assert resolve(nvfp4=False, policy="reset").name == "reset"


def test_an_option_without_effect_is_told() -> None:
    reporter = CollectingReporter()
    resolve(nvfp4=False, tau0=0.5, reporter=reporter)
    assert reporter.warnings == ["--tau0 has no effect under policy fixed"]


def test_header_shows_what_is_used() -> None:
    keys = ["name", "estimator", "tau_0", "tau_0_source", "t_low", "t_high", "window", "temperature", "top_p", "top_k",
            "min_p"]  # fmt: skip
    used = {}
    for name in POLICIES:
        header = PolicySettings(name=name, tau_0=0.5, tau_0_source="option").header()
        assert list(header) == keys
        used[name] = {key for key, value in header.items() if value is not None} - {"name"}
    filters = {"top_p", "top_k", "min_p"}
    two = filters | {"t_low", "t_high"}
    tau = {"tau_0", "tau_0_source"}
    assert used == {
        "reset": two | tau | {"estimator", "window"}, "fixed": filters | {"temperature"}, "greedy": set(),
        "fixed-threshold": two | tau, "sliding-window": two | {"window"},
        "step-relative": two | {"estimator", "window"}, "uniform-low": two | {"estimator", "window"},
    }  # fmt: skip
    assert PolicySettings(tau_0=0.5, estimator="causal").header()["window"] is None
    windowed = {e for e in ESTIMATORS if PolicySettings(estimator=e, tau_0=0.5).uses("window")}
    assert windowed == {"hybrid", "window", "ema"}
    assert [n for n in POLICIES if not PolicySettings(name=n).needs_entropy] == ["fixed", "greedy"]


def test_imports_without_torch() -> None:
    code = "import sys, resetcli.policy.settings, resetcli.policy.config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
