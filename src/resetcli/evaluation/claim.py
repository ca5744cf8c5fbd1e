"""One writer at a time: a run's folder made if missing, locked, and put back as it was if nothing comes of the run.

The lock is the kernel's (flock) on ``run.lock`` and ends with its process. It may be removed by its holder only; a
process that had opened the file before then holds a lock on a file that nobody finds any more, so each looks
whether its file is still the one in the folder, and tries again if not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from resetcli.base.errors import ResetError

LOCK = "run.lock"

ATTEMPTS = 100
"""How often a lock file or a folder that vanished meanwhile is tried again."""


class Claim:
    """The lock of ``path``, held until ``release``.

    Raises:
        ResetError: ``path`` is a file or cannot be written, or another process holds the lock.
    """

    def __init__(self, path: Path):
        self.path = path
        self._folders: list[Path] = []
        self._made_lock = False
        self._handle: int | None = None
        try:
            if path.exists() and not path.is_dir():
                raise ResetError(f"output {path} is a file; choose another name with -o")
            why: OSError = BlockingIOError()
            for _ in range(ATTEMPTS):
                try:
                    if self._take():
                        return
                except FileNotFoundError as exc:
                    why = exc  # folder or lock went with their holder's call
            raise why
        except BlockingIOError as exc:
            raise ResetError(
                f"run {path} is being written by another process; wait for it, or choose another -o"
            ) from exc
        except OSError as exc:
            self._remove_folders()
            raise ResetError(f"cannot write {path}: {exc.strerror or exc}; choose another folder with -o") from exc

    def _take(self) -> bool:
        """Whether the lock is held now; FileNotFoundError too says that somebody removed what it needs."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self._folders += [folder for folder in missing if folder not in self._folders]
        self.path.mkdir(parents=True, exist_ok=True)
        lock = self.path / LOCK
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            made = True
        except FileExistsError:
            handle = os.open(lock, os.O_RDWR)
            made = False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(lock)):
                    self._handle, self._made_lock = handle, made
                    return True
            return False
        finally:
            if self._handle is None:
                os.close(handle)

    def release(self, *, undo: bool) -> None:
        """Let go; with ``undo``, remove the lock file and the empty folders that this claim made."""
        if self._handle is None:
            return
        if undo and self._made_lock:
            with contextlib.suppress(OSError):
                os.unlink(self.path / LOCK)
        os.close(self._handle)
        self._handle = None
        if undo:
            self._remove_folders()

    def _remove_folders(self) -> None:
        """Innermost first; one that holds anything stays, and so do those around it."""
        with contextlib.suppress(OSError):
            for folder in sorted(self._folders, key=lambda f: len(f.parts), reverse=True):
                folder.rmdir()
