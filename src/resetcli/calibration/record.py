"""Calibration onto disk: where ``reset_config.json`` goes and what it says besides tau_0."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import Reporter
from resetcli.calibration.tau0 import CalibrationResult
from resetcli.policy.config import ResetConfig, load_config, paper_values, save_config
from resetcli.policy.settings import PolicySettings


def config_directory(path: Path, *, nvfp4: bool, output: Path | None) -> Path:
    """Where ``reset_config.json`` will go; call before generating, so that a wrong call costs no time.

    Raises:
        UsageError: a BF16 model without ``-o``, or with ``-o`` naming the model itself.
        ResetError: the directory cannot be written.
    """
    source = Path(path).resolve()
    if output is None:
        if not nvfp4:
            raise UsageError(f"{path} is not an NVFP4 checkpoint and calibrate never writes into it; pass -o DIR")
        target = source
    else:
        target = Path(output).expanduser().absolute()
        if not nvfp4 and target.resolve() == source:
            raise UsageError(f"-o {output} is the model itself, and calibrate never writes into it; pass another -o")
    if target.exists() and not target.is_dir():
        raise UsageError(f"-o {target} is a file; pass a directory")
    above = next(folder for folder in (target, *target.parents) if folder.exists())
    if not os.access(above, os.W_OK):
        raise ResetError(f"cannot write {target}; make it writable or pass -o DIR")
    return target


def save_calibration(
    result: CalibrationResult,
    directory: Path,
    *,
    t_low: float | None = None,
    t_high: float | None = None,
    window: int | None = None,
    top_p: float | None = None,
    t_low_by_task: dict[str, float] | None = None,
    compare: dict[str, Any] | None = None,
    t_low_selection: list[dict[str, Any]] | None = None,
    reporter: Reporter | None = None,
) -> ResetConfig:
    """Write ``reset_config.json`` into ``directory`` and return what it says.

    What is not given keeps the value of a ``reset_config.json`` already there, else the paper's T_low for this
    model's name, else the defaults. An older ``t_low_by_task`` is kept only while tau_0 is unchanged, since it
    was chosen under that tau_0. ``compare`` and ``t_low_selection`` (``compare_entropies``,
    ``[TLowChoice.to_json(), ...]``) are recorded in the calibration object.

    Raises:
        UsageError: a value out of range.
        ResetError: the file cannot be written.
    """
    try:
        old = load_config(directory)
    except ResetError as exc:
        (reporter or Reporter()).warn(f"replacing a reset_config.json that cannot be used: {exc}")
        old = None
    paper = paper_values(result.info.model)
    defaults = PolicySettings()
    if t_low is None:
        t_low = old.t_low if old else (paper[1] if paper else defaults.t_low)
    if t_low_by_task is None and old and old.tau_0 == result.tau_0:
        t_low_by_task = old.t_low_by_task
    base = old or defaults
    config = ResetConfig(
        policy="reset",
        tau_0=result.tau_0,
        t_low=t_low,
        t_high=base.t_high if t_high is None else t_high,
        window=base.window if window is None else window,
        top_p=base.top_p if top_p is None else top_p,
        t_low_by_task=t_low_by_task or {},
        calibration=result.section()
        | ({"compare": compare} if compare else {})
        | ({"t_low_selection": t_low_selection} if t_low_selection else {}),
    )
    save_config(directory, config)
    return config
