"""What a MODEL argument means: a directory, a GGUF file, a hub id, RESET_MODEL, or the embedded model.

Every answer is a local directory in Hugging Face layout, so that nothing above this folder asks the hub or reads
GGUF. Pickled weights are never fetched nor accepted.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from resetcli.base.errors import ResetError
from resetcli.base.files import shortened
from resetcli.base.reporting import Reporter
from resetcli.models.embedded import EMBEDDED_NAME, embedded_model_dir
from resetcli.models.gguf import convert_gguf

HUB_ID = re.compile(r"(?P<repo>[\w.\-]+/[\w.\-]+)(@(?P<revision>[\w.\-/]+))?")
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.py", "*.tiktoken", "LICENSE*")


@dataclass(frozen=True)
class ModelSource:
    """A model as a local directory. ``name`` serves for output folders and tables; ``why`` says how it was chosen."""

    path: Path
    name: str
    why: str


def resolve_model(spec: str | None = None, *, reporter: Reporter | None = None) -> ModelSource:
    """The model that ``spec`` names: directory, GGUF file or hub id[@revision]; None: RESET_MODEL, else embedded.

    Raises:
        ResetError: nothing usable is there; one line with the cause and the remedy.
    """
    reporter = reporter or Reporter()
    if spec is not None:
        return _named(spec, "as given", reporter)
    if named := os.environ.get("RESET_MODEL"):
        return _named(named, "RESET_MODEL", reporter)
    path = embedded_model_dir(reporter)
    return ModelSource(path, EMBEDDED_NAME, "the embedded model, since no model is named and RESET_MODEL is not set")


def check_model_dir(path: Path) -> None:
    """Refuse a directory that is not a Hugging Face model with safetensors weights.

    Raises:
        ResetError: no config.json, no weights, or pickled weights only.
    """
    config = path / "config.json"
    if not config.is_file():
        gguf = sorted(item.name for item in path.glob("*.gguf"))
        hint = f"it holds {gguf[0]}: name that file instead" if gguf else "name a Hugging Face model directory"
        raise ResetError(f"{path} is not a model: it has no config.json; {hint}")
    try:
        kind = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as exc:
        raise ResetError(f"{path} is not a model: its config.json cannot be read ({exc}); restore it") from exc
    if not isinstance(kind, dict) or not (kind.get("model_type") or kind.get("architectures")):
        raise ResetError(f"{path} is not a model: its config.json names no model_type; restore it")
    if not isinstance(kind.get("architectures") or [], list):
        raise ResetError(f"{path} is not a model: architectures in its config.json is not a list; restore it")
    if not any(path.glob("*.safetensors")):
        pickled = any(path.glob("*.bin")) or any(path.glob("*.pt")) or any(path.glob("*.pth"))
        what = "only pickled weights, which are never loaded; convert them" if pickled else "no weights; copy them in"
        raise ResetError(f"{path} has {what} (*.safetensors are needed)")


def _named(spec: str, why: str, reporter: Reporter) -> ModelSource:
    label = "" if why == "as given" else f" ({why})"
    path = Path(spec).expanduser()
    try:
        path.stat()
    except OSError as exc:
        if exc.errno == errno.ENAMETOOLONG:
            raise ResetError(f"model {shortened(spec)}{label} cannot exist: {exc.strerror}; name another") from exc
    if path.is_dir():
        path = path.absolute()
        check_model_dir(path)
        return ModelSource(path, path.resolve().name, why)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ResetError(f"model {spec}{label} is a file but not GGUF; name a directory, a .gguf file or a hub id")
        name = re.sub(r"[^\w.\-]+", "-", path.stem)
        return ModelSource(convert_gguf(path.absolute(), name, reporter), name, why)
    match = HUB_ID.fullmatch(spec)
    if match is None or spec.startswith(".") or spec.lower().endswith(".gguf"):
        raise ResetError(
            f"model {spec}{label} does not exist; name a directory, a .gguf file or a hub id such as Qwen/Qwen3-8B"
        )
    return ModelSource(_download(match["repo"], match["revision"], label, reporter), match["repo"].split("/")[1], why)


def _download(repo: str, revision: str | None, label: str, reporter: Reporter) -> Path:
    """The hub's snapshot of ``repo`` in the hub's own cache; every failure is one line."""
    from huggingface_hub import constants, errors, snapshot_download

    spec = repo + (f"@{revision}" if revision else "")
    lead = f"model {spec}{label} is not a directory here, and"
    local = "copy the model to a directory and name that"
    try:
        with _no_bars(), reporter.phase(f"Fetch {spec}"):
            path = Path(snapshot_download(repo, revision=revision, allow_patterns=list(HUB_FILES)))
    except errors.GatedRepoError as exc:
        raise ResetError(f"{lead} the hub gates it; accept its terms there and set HF_TOKEN, or {local}") from exc
    except errors.RevisionNotFoundError as exc:
        raise ResetError(f"{lead} the hub's {repo} has no revision {revision}; check it on the hub") from exc
    except errors.RepositoryNotFoundError as exc:
        raise ResetError(f"{lead} the hub does not know it (or it is private and HF_TOKEN is unset); check it") from exc
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, OSError) as exc:
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "no connection"
        raise ResetError(
            f"{lead} the hub cannot be reached ({offline}) and its cache does not hold it; {local}"
        ) from exc
    except (errors.HfHubHTTPError, errors.HFValidationError, ValueError) as exc:
        raise ResetError(f"{lead} the hub answered: {str(exc).splitlines()[0][:200]}; {local}") from exc
    check_model_dir(path)
    return path


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    off = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not off:
            enable_progress_bars()
