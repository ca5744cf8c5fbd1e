"""Files that appear whole or not at all: write beside the target, flush to disk, then rename."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
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
    write_chunks(path, (data,))


def write_chunks(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace ``path`` with ``chunks``, joined, in one step; they are written as they come. Errors as ``write_text``,
    and whatever the chunks' maker raises."""
    path = Path(path)
    tmp = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
        tmp = Path(name)
        with os.fdopen(handle, "wb") as out:
            for chunk in chunks:
                out.write(chunk)
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
    except (ValueError, RecursionError) as exc:
        raise ResetError(f"{path} is not valid JSON ({exc}); restore or delete it") from exc


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def output_target(path: Path) -> Path:
    """The absolute directory that an output ``path`` means: a symbolic link's target, else ``path`` itself.

    Raises:
        ResetError: a link that leads nowhere or in a circle, or a name that the file system cannot hold.
    """
    path = Path(path).absolute()
    try:
        if not path.is_symlink():
            path.exists()
            return path
        return path.resolve(strict=True)
    except FileNotFoundError as exc:
        raise ResetError(f"output {path} is a link to {os.readlink(path)}, which is not there; choose another") from exc
    except (OSError, RuntimeError) as exc:  # a circle is one or the other, by Python's version
        circle = isinstance(exc, RuntimeError) or exc.errno == errno.ELOOP
        why = "it is a link that leads in a circle" if circle else getattr(exc, "strerror", None)
        raise ResetError(f"output {shortened(path)} cannot be used: {why}; choose another with -o") from exc


def shortened(path: Path | str, most: int = 120) -> str:
    """A path for a message: its middle left out if it is very long."""
    text = str(path)
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuse an output directory that would be mixed with, or would replace, something that is not ours.

    Raises:
        ResetError: ``path`` is a file, or a non-empty directory and ``overwrite`` is off, or a
            non-empty directory that resetcli did not make; as ``output_target`` for a link.
    """
    path = output_target(path)
    try:
        if not path.exists():
            return
        if not path.is_dir():
            raise ResetError(f"output {path} is a file; choose another name with -o")
        if not any(path.iterdir()):
            return
    except OSError as exc:
        raise ResetError(f"output {path} cannot be used: {exc.strerror or exc}; choose another with -o") from exc
    if not overwrite:
        raise ResetError(f"output directory {path} is not empty; choose another with -o, or pass --overwrite")
    if not (path / MARKER).exists():
        raise ResetError(f"output directory {path} was not made by resetcli, so --overwrite leaves it alone; use -o")


@contextlib.contextmanager
def whole_directory(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A scratch directory beside ``path`` that becomes ``path`` when the block succeeds, else vanishes.

    On any exception, Ctrl-C included, nothing is left and an older ``path`` is untouched. A kill leaves the scratch
    directory; the next call for the same ``path`` removes it (see `leftovers`), or, where the kill came between the
    two renames that replace an older tree, first does the second one. A link stays one: its target is
    written. What appeared or changed at ``path`` while the block ran is left alone; the result then stays beside it.

    Raises:
        ResetError: as ``check_output``, or the folder cannot be made, or ``path`` was taken meanwhile (the message
            says where the result is).
    """
    path = output_target(path)
    check_output(path, overwrite=overwrite)
    prefix = f".{path.name[:60]}.partial-"
    scratch = owner = None
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            leftovers.remove_abandoned(path, prefix)
            _finish_publishing(path)
            before = _contents(path)
            check_output(path, overwrite=overwrite)  # again: of what was looked at just now
            scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
            owner = leftovers.claim(scratch, path)
        except OSError as exc:
            raise ResetError(
                f"cannot create {shortened(path)}: {exc.strerror or exc}; choose another folder with -o"
            ) from exc
        yield scratch
        os.chmod(scratch, 0o755)
        (scratch / MARKER).touch()
        (scratch / leftovers.OWNER).unlink(missing_ok=True)
        _publish(scratch, path, before)
    except OSError as exc:
        raise ResetError(f"cannot write {path}: {exc.strerror or exc}; free space or choose another -o") from exc
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        if owner is not None:
            os.close(owner)


_Contents = dict[str, tuple[int, int, int]]


def _contents(folder: Path) -> _Contents:
    """Everything in ``folder`` by relative name: inode, size, time of change (ns). Empty if there is none."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            full = os.path.join(root, name)
            state = os.lstat(full)
            found[os.path.relpath(full, folder)] = (state.st_ino, state.st_size, state.st_mtime_ns)
    return found


def _publish(scratch: Path, path: Path, before: _Contents) -> None:
    """Rename ``scratch`` to ``path``, in place of the very contents ``before`` (empty: of nothing) and no others.

    A rename onto an empty directory is atomic and fails on one with anything in it, so nothing that comes to
    ``path`` at whatever moment is lost. An old tree is moved aside first and looked at there, where nobody's path
    leads any more; it is removed only once the new one stands, and moved back if it is not what it was.
    """
    old = None
    if before and path.is_dir():
        old = Path(tempfile.mkdtemp(prefix=f".{path.name[:60]}.old-", dir=path.parent))
    published = False
    try:
        try:
            if old is not None:
                os.rename(path, old)
                if _contents(old) != before:
                    raise FileExistsError(errno.EEXIST, "it changed")
            os.rename(scratch, path)
            published = True
        finally:
            if old is not None and not published:
                _move_back(old, path)
    except OSError as exc:
        kept = _keep(scratch, path)
        if exc.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            how = "changed" if before else "was made by somebody else"
            why = f"{path} {how} while the work ran and is left as it is"
        else:
            why = f"cannot write {path}: {exc.strerror or exc}"
        raise ResetError(f"{why}; the finished result is {kept}") from exc
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _finish_publishing(path: Path) -> None:
    """After a kill between the renames of ``_publish``: the finished tree, else the old one, back under its name."""
    # A longer name is cut in those of its trees, and another target's could look the same.
    if path.exists() or len(path.name) > 60:
        return
    aside: dict[str, list[Path]] = {"partial": [], "old": []}
    for each in path.parent.iterdir():
        if (made := re.fullmatch(rf"\.{re.escape(path.name)}\.(partial|old)-[a-z0-9_]+", each.name)) and _stands(each):
            aside[made[1]].append(each)
    if not aside["old"]:
        return
    trees = sorted(aside["partial"] or aside["old"], key=lambda each: each.stat().st_mtime)
    os.rename(trees[-1], path)
    for each in aside["old"] if aside["partial"] else ():
        shutil.rmtree(each, ignore_errors=True)


def _stands(folder: Path) -> bool:
    """A whole tree of ours on which nobody works."""
    return (folder / MARKER).exists() and not (folder / leftovers.OWNER).exists()


def _move_back(old: Path, path: Path) -> None:
    """Undo the move aside. Where ``path`` is taken by now, the old tree stays under its own name: never lost."""
    with contextlib.suppress(OSError):
        old.rmdir()  # it was not moved at all
        return
    with contextlib.suppress(OSError):
        os.rename(old, path)


def _keep(scratch: Path, path: Path) -> Path:
    """Give finished work a name beside ``path`` that nothing has."""
    for number in itertools.count(1):
        kept = path.with_name(f"{path.name[:200]}.finished-{number}")
        try:
            kept.mkdir()
        except FileExistsError:
            continue
        os.rename(scratch, kept)
        return kept
    raise AssertionError("unreachable")
