"""reset_config.json: where it goes, never into a BF16 source, and what outranks what in it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from calibration_double import NumpyEngine, problem_set

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import CollectingReporter
from resetcli.calibration.record import config_directory, save_calibration
from resetcli.calibration.tau0 import CalibrationResult, calibrate
from resetcli.policy.config import load_config


@pytest.fixture
def result() -> CalibrationResult:
    return calibrate(NumpyEngine(), problem_set())


def named(result: CalibrationResult, model: str) -> CalibrationResult:
    return dataclasses.replace(result, info=dataclasses.replace(result.info, model=model))


def test_directory_rules(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    assert config_directory(model, nvfp4=True, output=None) == model.resolve()
    assert config_directory(model, nvfp4=False, output=tmp_path / "new" / "out") == tmp_path / "new" / "out"
    with pytest.raises(UsageError, match="pass -o"):
        config_directory(model, nvfp4=False, output=None)
    with pytest.raises(UsageError, match="never writes into it"):
        config_directory(model, nvfp4=False, output=tmp_path / "x" / ".." / "model")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        config_directory(model, nvfp4=True, output=tmp_path / "file")


def test_written_file_reads_back(tmp_path: Path, result: CalibrationResult) -> None:
    saved = save_calibration(result, tmp_path, compare={"tokens": 3}, t_low_selection=[{"task": "aime"}])
    assert load_config(tmp_path) == saved
    document = json.loads((tmp_path / "reset_config.json").read_text())
    assert document["tau_0"] == result.tau_0 and document["policy"] == "reset" and document["t_low"] == 0.1
    assert document["calibration"]["compare"] == {"tokens": 3}


def test_t_low_option_then_old_file_then_paper_then_default(tmp_path: Path, result: CalibrationResult) -> None:
    qwen = named(result, "Qwen3-14B-nvfp4")
    assert save_calibration(qwen, tmp_path).t_low == 0.3
    assert save_calibration(result, tmp_path).t_low == 0.3
    assert save_calibration(qwen, tmp_path, t_low=0.2, t_low_by_task={"aime": 0.4}).t_low == 0.2
    assert save_calibration(qwen, tmp_path).t_low_by_task == {"aime": 0.4}
    moved = dataclasses.replace(qwen, tau_0=result.tau_0 + 0.1)
    assert save_calibration(moved, tmp_path).t_low_by_task == {}


def test_a_broken_old_file_is_replaced_with_a_warning(tmp_path: Path, result: CalibrationResult) -> None:
    (tmp_path / "reset_config.json").write_text('{"format": 1, "tau0": 3}')
    reporter = CollectingReporter()
    save_calibration(result, tmp_path, reporter=reporter)
    assert len(reporter.warnings) == 1 and "tau0" in reporter.warnings[0]
    assert load_config(tmp_path) is not None


def test_values_out_of_range_write_nothing(tmp_path: Path, result: CalibrationResult) -> None:
    with pytest.raises(ResetError, match="--t-low 1.5 must not be above --t-high 1"):
        save_calibration(result, tmp_path, t_low=1.5, t_high=1.0)
    assert not list(tmp_path.iterdir())
