"""Calibration onto disk: where ``reset_config.json`` goes and what it says besides tau_0."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import Reporter
from resetcli.calibration.tau0 import CalibrationResult
from resetcli.policy import limits
from resetcli.policy.config import FILE_NAME, ResetConfig, load_config, paper_values, save_config
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


def earlier_config(directory: Path, reporter: Reporter | None = None) -> ResetConfig | None:
    """The ``reset_config.json`` that ``save_calibration`` would go on from; None, with a warning, if unusable."""
    try:
        return load_config(directory)
    except ResetError as exc:
        (reporter or Reporter()).warn(f"replacing a reset_config.json that cannot be used: {exc}")
        return None


def stored_temperatures(
    old: ResetConfig | None, model: str, *, t_low: float | None, t_high: float | None, keep_tasks: bool = True
) -> tuple[float, float]:
    """(T_low, T_high) as ``save_calibration`` will write them; call before generating.

    ``keep_tasks``: an older ``t_low_by_task`` may be kept.

    Raises:
        UsageError: a T_low above T_high, wherever each comes from.
    """
    paper, defaults = paper_values(model), PolicySettings()
    low, low_from = t_low, ""
    if low is None and old is not None:
        low, low_from = old.t_low, f" ({FILE_NAME})"
    elif low is None:
        low, low_from = (paper[1], " (the paper's)") if paper else (defaults.t_low, " (default)")
    high, high_from = t_high, ""
    if high is None:
        high, high_from = (old.t_high, f" ({FILE_NAME})") if old is not None else (defaults.t_high, " (default)")
    assert low is not None
    limits.check_order(f"--t-low{low_from}", low, f"--t-high{high_from}", high)
    for task, value in (old.t_low_by_task if old is not None and keep_tasks else {}).items():
        limits.check_order(f"t_low_by_task.{task} ({FILE_NAME})", value, f"--t-high{high_from}", high)
    return low, high


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
    old = earlier_config(directory, reporter)
    if t_low_by_task is None and old and old.tau_0 == result.tau_0:
        t_low_by_task = old.t_low_by_task
    base = old or PolicySettings()
    low, high = stored_temperatures(old, result.info.model, t_low=t_low, t_high=t_high, keep_tasks=False)
    config = ResetConfig(
        policy="reset",
        tau_0=result.tau_0,
        t_low=low,
        t_high=high,
        window=base.window if window is None else window,
        top_p=base.top_p if top_p is None else top_p,
        t_low_by_task=t_low_by_task or {},
        calibration=result.section()
        | ({"compare": compare} if compare else {})
        | ({"t_low_selection": t_low_selection} if t_low_selection else {}),
    )
    save_config(directory, config)
    return config
