"""From options to what the library takes: checkpoint, policy settings, engine options. Shared by the commands.

The order is the point: whatever can be refused without a model (names, ranges, data, files to be written) is looked
at before a checkpoint is resolved, because resolving may convert and quantize the embedded model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resetcli.base.errors import ResetError, UsageError, unknown_name
from resetcli.base.files import shortened
from resetcli.base.reporting import Reporter
from resetcli.policy.config import FILE_NAME, ResetConfig, load_config
from resetcli.policy.settings import PolicySettings, resolve_settings

if TYPE_CHECKING:
    from resetcli.engines.factory import EngineOptions
    from resetcli.engines.protocol import Engine

MAX_NEW_TOKENS = 32768
EMBEDDED_MAX_NEW_TOKENS = 1024


@dataclass(frozen=True)
class PolicyOptions:
    """The policy options of a command line; None is what was not given."""

    policy: str | None = None
    estimator: str | None = None
    tau0: float | None = None
    t_low: float | None = None
    t_high: float | None = None
    window: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    config: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what no checkpoint could make right.

        Raises:
            UsageError: an unknown name, a value out of range, or T_low above T_high where both are given.
            ResetError: ``--config`` names no folder with a usable ``reset_config.json``.
        """
        given = {k: v for k, v in vars(self).items() if k not in ("config", "policy", "tau0") and v is not None}
        if self.t_low is not None and self.t_high is None:
            given["t_high"] = max(self.t_low, PolicySettings.t_high)
        if self.t_high is not None and self.t_low is None:
            given["t_low"] = min(self.t_high, PolicySettings.t_low)
        tau_0 = self.tau0 if self.tau0 is not None else 1.0
        PolicySettings(name=self.policy or "reset", tau_0=tau_0, **given).validate()
        if self.config is not None and load_config(self.config) is None:
            raise ResetError(f"--config {self.config} holds no {FILE_NAME}; `reset calibrate -o` writes one")


@dataclass(frozen=True)
class Loaded:
    """A resolved checkpoint: where it is, what it is called, what it was calibrated to."""

    path: Path
    name: str
    nvfp4: bool
    embedded: bool
    config: ResetConfig | None
    fingerprint: str

    def settings(self, options: PolicyOptions, reporter: Reporter, task: str | None = None) -> PolicySettings:
        """The policy's settings by rank (design 1.1)."""
        given = {k: v for k, v in vars(options).items() if k != "config"}
        return resolve_settings(
            nvfp4=self.nvfp4, model_name=self.name, config=self.config, task=task, reporter=reporter, **given
        )

    @property
    def token_limit(self) -> int:
        """Default of ``--max-new-tokens``, before the context is taken into account."""
        return EMBEDDED_MAX_NEW_TOKENS if self.embedded else MAX_NEW_TOKENS


def load(spec: str | None, reporter: Reporter, *, config: Path | None = None) -> Loaded:
    """Resolve CHECKPOINT, say which and why, and read the configuration that goes with it."""
    from resetcli.nvfp4.checkpoint import fingerprint, is_nvfp4
    from resetcli.quantization.last import resolve_checkpoint
    from resetcli.quantization.origin import is_embedded

    source = resolve_checkpoint(spec, reporter=reporter)
    reporter.info(f"checkpoint {source.path} ({source.why})")
    found = load_config(config if config is not None else source.path)
    mark = fingerprint(source.path)
    theirs = found.calibration.get("model_fingerprint") if found is not None else None
    if theirs is not None and theirs != mark:
        reporter.warn(
            f"{FILE_NAME} was calibrated on another model than {source.name} (fingerprints differ); "
            "run `reset calibrate` again"
        )
    return Loaded(source.path, source.name, is_nvfp4(source.path), is_embedded(source.path), found, mark)


@dataclass(frozen=True)
class EngineChoice:
    """The engine options of a command line, checked as far as that needs no checkpoint."""

    engine: str = "transformers"
    device: str | None = None
    dtype: str | None = None
    batch_size: int = 1
    batch_invariant: bool | None = None
    activations: str = "w4a4"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError for an unknown engine, dtype or activation mode, or a device that is not there."""
        from resetcli.engines.factory import DTYPES, ENGINES, pick_device

        for kind, value, known in (
            ("engine", self.engine, ENGINES),
            ("dtype", self.dtype, DTYPES),
            ("activation mode", self.activations, ("w4a4", "w4a16")),
        ):
            if value is not None and value not in known:
                raise unknown_name(kind, value, known)
        if self.device is not None:
            pick_device(self.device)

    def options(self, checkpoint: Loaded) -> EngineOptions:
        """What ``open_engine`` takes."""
        from resetcli.engines.factory import EngineOptions

        return EngineOptions(path=checkpoint.path, name=checkpoint.name, **vars(self))

    def opener(self, checkpoint: Loaded, reporter: Reporter) -> Callable[[], Engine]:
        """A function that opens the engine, for who may not need it."""
        from resetcli.engines.factory import open_engine

        return lambda: open_engine(self.options(checkpoint), reporter)

    def record(self) -> dict[str, Any]:
        """What a run keeps of it: all that can change a sample."""
        return {k: v for k, v in vars(self).items() if k not in ("batch_size", "trust_remote_code")}


DOCUMENTS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "a trace": lambda first_line: "trace" in first_line and "policy" in first_line,
    "a bench document": lambda value: value.get("bench") == "kernels",
    "a table of kernels": lambda value: {"format", "device", "entries"} <= set(value),
}
"""What a command writes over: only an earlier document of the same kind."""

_LARGEST = 1 << 28


def check_writable_file(path: Path, option: str, kind: str | None = None) -> None:
    """Refuse a file that could not be written at the end, or must not be, before the work begins.

    ``kind``: the key in ``DOCUMENTS`` of what will be written; a file there that is another thing is refused, as
    `--trace model.safetensors` is a slip that costs a model. None: whatever is there may go.

    Raises:
        UsageError: it is a folder, or holds something else than ``kind``.
        ResetError: its folder cannot be written.
    """
    path = path.expanduser().absolute()
    try:
        if path.is_dir():
            raise UsageError(f"{option} {path} is a folder; name a file")
        path.exists()  # raises for a name that is too long
        above = next(folder for folder in path.parents if folder.exists())
        if not above.is_dir() or not os.access(path if path.exists() else above, os.W_OK):
            raise ResetError(f"{option} {path} cannot be written; choose another file")
        if kind is not None and path.is_file() and path.stat().st_size and not _holds(path, kind):
            raise UsageError(f"{option} {path} is there already and is not {kind}; choose another file, or delete it")
    except OSError as exc:
        raise ResetError(
            f"{option} {shortened(path)} cannot be written: {exc.strerror or exc}; choose another file"
        ) from exc


def _holds(path: Path, kind: str) -> bool:
    with open(path, "rb") as stream:
        text = stream.readline(_LARGEST) if kind == "a trace" else stream.read(_LARGEST)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and DOCUMENTS[kind](value)
