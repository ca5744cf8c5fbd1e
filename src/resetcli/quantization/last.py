"""Which checkpoint a command means when none is named, and the note ``.reset/last`` that answers it.

Order (design 1.1): the argument, RESET_CHECKPOINT, the last one quantized from this folder, the embedded model's
own NVFP4 checkpoint, made on the spot and cached.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from resetcli.base.errors import ResetError
from resetcli.base.files import cache_dir, write_text
from resetcli.base.reporting import Reporter
from resetcli.models.embedded import EMBEDDED_NAME, embedded_model_dir
from resetcli.models.gguf import locked
from resetcli.models.resolve import ModelSource, check_model_dir, resolve_model

LAST = Path(".reset") / "last"


@dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint (NVFP4 or BF16) as a local directory; ``why`` says how it was chosen."""

    path: Path
    name: str
    why: str


def remember_last(path: Path) -> None:
    """Write the absolute ``path`` to ``.reset/last`` under the current folder."""
    write_text(Path.cwd() / LAST, f"{Path(path).absolute()}\n")


def remembers_another(path: Path) -> bool:
    """Whether ``.reset/last`` names a checkpoint that is still there and is not ``path``."""
    note = Path.cwd() / LAST
    if not note.is_file():
        return False
    named = Path(note.read_text().strip())
    return named.is_dir() and named != Path(path).absolute()


def resolve_checkpoint(spec: str | None = None, *, reporter: Reporter | None = None) -> CheckpointSource:
    """The checkpoint that ``spec`` names (directory, GGUF file or hub id), or the fall-backs when it is None.

    Raises:
        ResetError: what is named is not usable, or the embedded model is needed and not available.
    """
    reporter = reporter or Reporter()
    if spec is not None:
        source = resolve_model(spec, reporter=reporter)
        return CheckpointSource(source.path, source.name, "as given")
    if named := os.environ.get("RESET_CHECKPOINT"):
        try:
            source = resolve_model(named, reporter=reporter)
        except ResetError as exc:
            raise ResetError(f"RESET_CHECKPOINT names nothing usable: {exc}") from exc
        return CheckpointSource(source.path, source.name, "RESET_CHECKPOINT")
    if (last := _last(reporter)) is not None:
        return CheckpointSource(last, last.name, "made last by `reset quantize` in this folder (.reset/last)")
    path = embedded_checkpoint(reporter)
    why = "the embedded model's NVFP4 checkpoint, since none is named and none was made in this folder"
    return CheckpointSource(path, path.name, why)


def embedded_checkpoint(reporter: Reporter | None = None) -> Path:
    """The cached NVFP4 checkpoint of the embedded model, quantized now if it is not there. Safe to race."""
    from resetcli.quantization.run import quantize

    reporter = reporter or Reporter()
    model = embedded_model_dir(reporter)
    target = cache_dir() / "checkpoints" / f"{model.name}-rtn" / f"{EMBEDDED_NAME}-nvfp4"
    if (target / "config.json").is_file():
        return target
    with locked(target.parent / ".lock"):
        if not (target / "config.json").is_file():
            reporter.info(f"quantizing the embedded model to {target} (once)")
            source = ModelSource(model, EMBEDDED_NAME, "the embedded model")
            quantize(source, target, remember=False, reporter=reporter)
    return target


def _last(reporter: Reporter) -> Path | None:
    note = Path.cwd() / LAST
    try:
        text = note.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        reporter.warn(f"{LAST} cannot be read ({exc}); it is passed over")
        return None
    path = Path(text)
    if not text or not path.is_dir():
        reporter.warn(f"the checkpoint in {LAST} is gone ({text or 'empty'}); it is passed over")
        return None
    try:
        check_model_dir(path)
    except ResetError as exc:
        reporter.warn(f"the checkpoint in {LAST} is passed over: {exc}")
        return None
    return path
