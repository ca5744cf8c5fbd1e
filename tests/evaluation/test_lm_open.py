"""A policy from the command line of lm-eval: a wrong name is told before all else, other errors keep theirs."""

from __future__ import annotations

import pytest

from resetcli.base.errors import UsageError
from resetcli.base.reporting import Reporter
from resetcli.evaluation.lm_open import POLICY_ARGUMENTS, open_by_name


def test_an_unknown_name_is_told_alone_and_first(tmp_path) -> None:
    given = {"policy": "reset", "tau_0": 0.5}
    with pytest.raises(UsageError, match=r"unknown model argument 'tau_0' \(policy arguments: policy, estimator, tau0"):
        open_by_name(str(tmp_path / "not there"), None, {"device": "cpu"}, given, Reporter())


@pytest.mark.parametrize(
    ("given", "words"),
    [({"policy": 3}, "unknown policy '3'"), ({"policy": "reset", "tau0": "high"}, "--tau0 must be a number")],
)
def test_a_wrong_value_is_named(given, words, tiny_model_dir) -> None:
    with pytest.raises(UsageError, match=words):
        open_by_name(str(tiny_model_dir), None, {"device": "cpu"}, given, Reporter())


def test_a_type_error_is_not_taken_for_a_wrong_name(tiny_model_dir, monkeypatch) -> None:
    def broken(_):
        raise TypeError("a fault of ours")

    monkeypatch.setattr("resetcli.policy.config.load_config", broken)
    with pytest.raises(TypeError, match="a fault of ours"):
        open_by_name(str(tiny_model_dir), None, {"device": "cpu"}, {"policy": "reset"}, Reporter())


def test_the_names_are_those_that_settings_take() -> None:
    import inspect

    from resetcli.policy.settings import resolve_settings

    ours = {"nvfp4", "model_name", "config", "task", "reporter"}
    assert set(POLICY_ARGUMENTS) == set(inspect.signature(resolve_settings).parameters) - ours
