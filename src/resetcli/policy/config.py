"""``reset_config.json``: what calibration found for one checkpoint, kept beside it (design 1.2 and 1.3).

Read strictly: a misspelt key or a value out of range is refused by name, since a silent default would change
every temperature. The ``calibration`` part is a record of how tau_0 came about and decides nothing by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.files import read_json, shortened, write_json
from resetcli.policy import limits

FILE_NAME = "reset_config.json"
FORMAT = 1

PAPER_TABLE: dict[str, tuple[float, float]] = {
    "Qwen3-8B": (0.1, 0.5505),
    "Qwen3-14B": (0.3, 0.4863),
    "Qwen3-32B": (0.1, 0.5363),
    "R1-Distill-Qwen-7B": (0.4, 0.6446),
    "R1-Distill-Qwen-14B": (0.3, 0.6488),
}
"""Model name: (T_low, tau_0 in nats), the values of arXiv 2606.13233."""

CALIBRATION_KEYS = (
    # What the contract lists ...
    "percentile", "problems", "tokens", "entropy_percentiles", "dataset", "problem_ids", "temperature", "seed",
    "model_fingerprint", "versions",
    # ... and what else a calibration may tell of itself.
    "dataset_sha256", "dataset_origin", "policy", "top_p", "max_new_tokens", "truncated", "bootstrap", "engine",
    "device", "dtype", "activations", "batch_invariant", "thinking", "compare", "t_low_selection", "model",
)  # fmt: skip

# Endings that a quantized copy's name may carry; anything else (DeepSeek-R1-0528-Qwen3-8B, Qwen3-8B-Base) is
# another model, whose entropies the paper did not measure.
_COPY_ENDINGS = r"(?:[-_.](?:nvfp4|fp4|w4a4|w4a16|bf16|rtn|gptq|4over6|rotated|hadamard|quantized|modelopt))*"


def paper_values(model_name: str) -> tuple[str, float, float] | None:
    """(table name, T_low, tau_0) of a model in the paper's table, by its name, path or hub id; else None."""
    base = model_name.rstrip("/").rsplit("/", 1)[-1]
    base = base.split("@", 1)[0]
    for name, (t_low, tau_0) in PAPER_TABLE.items():
        prefix = "(?:DeepSeek-)?" if name.startswith("R1-") else ""
        if re.fullmatch(prefix + re.escape(name) + _COPY_ENDINGS, base, flags=re.IGNORECASE):
            return name, t_low, tau_0
    return None


@dataclass(frozen=True)
class ResetConfig:
    """Contents of ``reset_config.json``, format 1.

    ``tau_0`` in nats, ``window`` in tokens; ``t_low_by_task`` overrides ``t_low`` for single tasks.
    """

    tau_0: float
    policy: str = "reset"
    t_low: float = 0.1
    t_high: float = 1.0
    window: int = 32
    top_p: float = 0.95
    t_low_by_task: dict[str, float] = field(default_factory=dict)
    calibration: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def validate(self) -> None:
        """Raises UsageError naming the first key whose value is out of range."""
        if self.format != FORMAT or isinstance(self.format, bool):
            raise UsageError(f"format must be {FORMAT}, not {self.format!r}")
        if self.policy not in limits.POLICIES:
            raise UsageError(f"policy must be one of {', '.join(limits.POLICIES)}, not {self.policy!r}")
        limits.check_tau_0("tau_0", self.tau_0)
        limits.check_temperature("t_low", self.t_low)
        limits.check_temperature("t_high", self.t_high)
        limits.check_order("t_low", self.t_low, "t_high", self.t_high)
        limits.check_window("window", self.window)
        limits.check_top_p("top_p", self.top_p)
        if not isinstance(self.t_low_by_task, dict):
            raise UsageError("t_low_by_task must be an object of task: temperature")
        for task, value in self.t_low_by_task.items():
            limits.check_temperature(f"t_low_by_task.{task}", value)
            limits.check_order(f"t_low_by_task.{task}", value, "t_high", self.t_high)
        if not isinstance(self.calibration, dict):
            raise UsageError("calibration must be an object")
        _refuse_unknown("calibration.", self.calibration, CALIBRATION_KEYS)
        if (percentile := self.calibration.get("percentile")) is not None and not (
            0.0 <= limits.number("calibration.percentile", percentile) <= 100.0
        ):
            raise UsageError(f"calibration.percentile must be between 0 and 100, not {percentile}")

    def as_dict(self) -> dict[str, Any]:
        """The JSON object, in the contract's order; ``t_low_by_task`` only when there is something in it."""
        value: dict[str, Any] = {
            "format": self.format, "policy": self.policy, "tau_0": self.tau_0, "t_low": self.t_low,
            "t_high": self.t_high, "window": self.window, "top_p": self.top_p,
        }  # fmt: skip
        if self.t_low_by_task:
            value["t_low_by_task"] = dict(self.t_low_by_task)
        value["calibration"] = dict(self.calibration)
        return value


def _refuse_unknown(prefix: str, value: dict[str, Any], known: tuple[str, ...]) -> None:
    import difflib

    for key in value:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known: {', '.join(known)}"
            raise UsageError(f"unknown key '{prefix}{key}' ({hint})")


def load_config(directory: Path) -> ResetConfig | None:
    """The configuration in a checkpoint directory, or None where there is no file.

    Raises:
        ResetError: not JSON, an unknown or missing key, or a value out of range, each by name.
    """
    path = Path(directory) / FILE_NAME
    try:
        if not path.exists():
            return None
    except OSError as exc:
        raise ResetError(f"cannot read {shortened(path)}: {exc.strerror or exc}") from exc
    value = read_json(path)
    if not isinstance(value, dict):
        raise ResetError(f"{path} must hold a JSON object; run `reset calibrate` to write it anew")
    try:
        _refuse_unknown("", value, tuple(f.name for f in fields(ResetConfig)))
        for key in ("format", "tau_0"):
            if key not in value:
                raise UsageError(f"key '{key}' is missing")
        config = ResetConfig(**value)
        config.validate()
    except UsageError as exc:
        raise ResetError(f"{path}: {exc}; mend it, or run `reset calibrate` to write it anew") from exc
    return config


def save_config(directory: Path, config: ResetConfig) -> Path:
    """Write ``reset_config.json`` into ``directory`` in one step; returns its path.

    Raises:
        UsageError: a value is out of range (nothing is written).
        ResetError: the file cannot be written (an older one stays).
    """
    config.validate()
    path = Path(directory) / FILE_NAME
    write_json(path, config.as_dict())
    return path
