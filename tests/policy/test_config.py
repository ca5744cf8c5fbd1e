"""reset_config.json: what goes in comes out, and everything else is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from resetcli.base.errors import ResetError, UsageError
from resetcli.policy.config import FILE_NAME, PAPER_TABLE, ResetConfig, load_config, paper_values, save_config

GOOD = {"format": 1, "policy": "reset", "tau_0": 0.55, "t_low": 0.1, "t_high": 1.0, "window": 32, "top_p": 0.95,
        "calibration": {"percentile": 80, "problems": 5}}  # fmt: skip


def write(folder: Path, **changes) -> Path:
    (folder / FILE_NAME).write_text(json.dumps(GOOD | changes))
    return folder


def test_round_trip(tmp_path) -> None:
    config = ResetConfig(tau_0=0.1 + 0.2, t_low=0.2, window=16, t_low_by_task={"aime": 0.3}, calibration={"seed": 3})
    save_config(tmp_path, config)
    assert load_config(tmp_path) == config
    assert [p.name for p in tmp_path.iterdir()] == [FILE_NAME]
    assert json.loads((tmp_path / FILE_NAME).read_text())["format"] == 1
    save_config(tmp_path, ResetConfig(tau_0=0.5))
    assert list(json.loads((tmp_path / FILE_NAME).read_text())) == list(GOOD)


def test_none_without_a_file(tmp_path) -> None:
    assert load_config(tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"format": 2}, "format"), ({"format": True}, "format"),
        ({"policy": "rest"}, "policy"), ({"policy": None}, "policy"), ({"policy": []}, "policy"),
        ({"tau_0": -0.1}, "tau_0"), ({"tau_0": math.nan}, "tau_0"), ({"tau_0": math.inf}, "tau_0"),
        ({"tau_0": "0.5"}, "tau_0"), ({"tau_0": True}, "tau_0"), ({"tau_0": None}, "tau_0"), ({"tau_0": 1e9}, "tau_0"),
        ({"t_low": -0.5}, "t_low"), ({"t_low": 0.001}, "t_low"), ({"t_high": math.nan}, "t_high"),
        ({"t_low": 0.8, "t_high": 0.5}, "t_low 0.8 must not be above t_high 0.5"),
        ({"window": 0}, "window"), ({"window": 1.5}, "window"), ({"window": 10**9}, "window"),
        ({"top_p": 0}, "top_p"), ({"top_p": 1.1}, "top_p"),
        ({"t_low_by_task": {"aime": 2.0}}, "t_low_by_task.aime"), ({"t_low_by_task": 3}, "t_low_by_task"),
        ({"calibration": []}, "calibration"),
        ({"calibration": {"percentil": 80}}, "did you mean calibration.percentile"),
        ({"calibration": {"percentile": 101}}, "calibration.percentile"),
        ({"tau0": 0.5}, "unknown key 'tau0' .did you mean tau_0"), ({"zzz": 1}, "unknown key 'zzz'"),
    ],
)  # fmt: skip
def test_refused_by_name(tmp_path, changes, named) -> None:
    with pytest.raises(ResetError, match=named) as caught:
        load_config(write(tmp_path, **changes))
    assert str(tmp_path / FILE_NAME) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "{", "", '{"format": 1}', '{"tau_0": 0.5}'])
def test_not_a_configuration(tmp_path, text) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ResetError, match=FILE_NAME):
        load_config(tmp_path)


def test_a_bad_value_is_not_saved(tmp_path) -> None:
    save_config(tmp_path, ResetConfig(tau_0=0.5))
    with pytest.raises(UsageError, match="tau_0"):
        save_config(tmp_path, ResetConfig(tau_0=-1))
    assert load_config(tmp_path) == ResetConfig(tau_0=0.5)


def test_paper_table_by_name() -> None:
    assert len(PAPER_TABLE) == 5
    for name in ("Qwen3-8B", "Qwen/Qwen3-8B", "nvidia/Qwen3-8B-NVFP4", "/m/qwen3-8b-nvfp4/", "Qwen/Qwen3-8B@main"):
        assert paper_values(name) == ("Qwen3-8B", 0.1, 0.5505)
    assert paper_values("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B") == ("R1-Distill-Qwen-14B", 0.3, 0.6488)
    for name in ("DeepSeek-R1-0528-Qwen3-8B", "Qwen3-8B-Base", "Qwen3-80B", "SmolLM2-135M-Instruct", ""):
        assert paper_values(name) is None
