"""Which model a checkpoint was made from, as its ``quantize_report.json`` says."""

from __future__ import annotations

from pathlib import Path

from resetcli.base.errors import ResetError
from resetcli.base.files import read_json
from resetcli.models.embedded import EMBEDDED_NAME, embedded_cached_dir
from resetcli.quantization.export import REPORT


def source_name(path: Path) -> str | None:
    """Name of the model that the checkpoint at ``path`` was quantized from; None where no report says so."""
    report = Path(path) / REPORT
    if not report.is_file():
        return None
    try:
        value = read_json(report)
    except ResetError:
        # A damaged report costs a default, not the run; `reset inspect` tells of it.
        return None
    model = value.get("model") if isinstance(value, dict) else None
    name = model.get("name") if isinstance(model, dict) else None
    return name if isinstance(name, str) else None


def is_embedded(path: Path) -> bool:
    """Whether ``path`` is the embedded model or a checkpoint made from it (whose defaults are smaller)."""
    cached = embedded_cached_dir()
    return source_name(path) == EMBEDDED_NAME or (cached is not None and cached.resolve() == Path(path).resolve())
