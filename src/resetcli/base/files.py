"""Files that appear whole or not at all: write beside the target, flush to disk, then rename."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resetcli.base import leftovers
from resetcli.base.errors import ResetError

MARKER = ".resetcli"
"""Empty file in each directory that resetcli made; only such directories may be overwritten."""


def cache_dir() -> Path:
    """``RESET_CACHE``, else ``$XDG_CACHE_HOME/resetcli``, else ``~/.cache/resetcli``. Not created here."""
    if root := os.environ.get("RESET_CACHE"):
        return Path(root).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "resetcli"


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` with ``text`` (UTF-8, LF) in one step.

    Raises:
        ResetError: the disk is full or the folder cannot be written; ``path`` is as it was.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` with ``data`` in one step; errors as ``write_text``."""
    path = Path(path)
    tmp = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
        tmp = Path(name)
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(tmp, 0o644)
        os.replace(tmp, path)
    except OSError as exc:
        raise ResetError(f"cannot write {path}: {exc.strerror or exc}; free space or choose another folder") from exc
    finally:
        if tmp is not None:
            tmp.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` with ``value`` as indented JSON (NaN refused), in one step."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The JSON document in ``path``.

    Raises:
        ResetError: the file is missing, unreadable or not JSON; the message names file and position.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as exc:
        raise ResetError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except (ValueError, UnicodeDecodeError) as exc:
        raise ResetError(f"{path} is not valid JSON ({exc}); restore or delete it") from exc


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuse an output directory that would be mixed with, or would replace, something that is not ours.

    Raises:
        ResetError: ``path`` is a file, or a non-empty directory and ``overwrite`` is off, or a
            non-empty directory that resetcli did not make.
    """
    path = Path(path)
    if not path.exists():
        return
    if not path.is_dir():
        raise ResetError(f"output {path} is a file; choose another name with -o")
    if not any(path.iterdir()):
        return
    if not overwrite:
        raise ResetError(f"output directory {path} is not empty; choose another with -o, or pass --overwrite")
    if not (path / MARKER).exists():
        raise ResetError(f"output directory {path} was not made by resetcli, so --overwrite leaves it alone; use -o")


@contextlib.contextmanager
def whole_directory(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A scratch directory beside ``path`` that becomes ``path`` when the block succeeds, else vanishes.

    On any exception, Ctrl-C included, nothing is left and an older ``path`` is untouched. A kill leaves the scratch
    directory; the next call for the same ``path`` removes it (see `leftovers`).

    Raises:
        ResetError: as ``check_output``, or the folder cannot be made.
    """
    path = Path(path).absolute()
    check_output(path, overwrite=overwrite)
    prefix = f".{path.name[:60]}.partial-"
    scratch = owner = None
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            leftovers.remove_abandoned(path, prefix)
            scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
            owner = leftovers.claim(scratch, path)
        except OSError as exc:
            raise ResetError(f"cannot create {path}: {exc.strerror or exc}; choose another folder with -o") from exc
        yield scratch
        os.chmod(scratch, 0o755)
        (scratch / MARKER).touch()
        (scratch / leftovers.OWNER).unlink(missing_ok=True)
        if path.exists():
            # Renames are atomic one by one; the old tree is kept until the new one stands.
            old = Path(tempfile.mkdtemp(prefix=f".{path.name[:60]}.old-", dir=path.parent))
            os.rename(path, old / "tree")
            os.rename(scratch, path)
            shutil.rmtree(old)
        else:
            os.rename(scratch, path)
    except OSError as exc:
        raise ResetError(f"cannot write {path}: {exc.strerror or exc}; free space or choose another -o") from exc
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        if owner is not None:
            os.close(owner)
