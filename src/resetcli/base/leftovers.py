"""Scratch folders that a killed process left behind: who owns one, and whether that process is gone.

A folder holds an owner file with its process (id and start time, since ids are used again), host and target, and
the process keeps that file locked. A folder goes only if everything says that it is nobody's: same host and target,
no such process, and the lock free, which also covers processes that another container hides from us. Whatever
cannot be told (no owner file, another host, a file system without locks) is left alone: a leftover costs disk, a
removed live folder costs hours of work.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

OWNER = ".owner"


def claim(folder: Path, target: Path) -> int:
    """Write the owner file of this process into ``folder``, scratch for ``target``; the descriptor holds its lock.

    Raises:
        OSError: it cannot be written.
    """
    handle = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with contextlib.suppress(OSError):  # no locks on this file system: then nobody will take it for abandoned
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(handle, json.dumps(_me(target)).encode())
    except BaseException:
        os.close(handle)
        raise
    return handle


def remove_abandoned(target: Path, prefix: str) -> list[Path]:
    """Remove the folders ``prefix``... beside ``target`` that were scratch for it and whose process is gone.

    Returns them. What cannot be read or removed stays; the caller's own work does not depend on it.
    """
    removed = []
    with contextlib.suppress(OSError):
        for folder in list(target.parent.iterdir()):
            if folder.name.startswith(prefix) and not folder.is_symlink() and _abandoned(folder, target):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


def _abandoned(folder: Path, target: Path) -> bool:
    try:
        handle = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        owner = json.loads(os.read(handle, 4096))
        me = _me(target)
        if any(owner[key] != me[key] for key in ("host", "target")):
            return False
        if owner["boot"] == me["boot"] and started(owner["pid"]) == owner["started"]:
            return False
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    finally:
        os.close(handle)
    return True


def _me(target: Path) -> dict[str, Any]:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return {
        "pid": os.getpid(),
        "started": started(os.getpid()),
        "host": platform.node(),
        "boot": boot.read_text().strip() if boot.exists() else None,
        "target": target.name,
    }


def started(pid: int) -> int | None:
    """Start time of process ``pid`` in clock ticks since boot; None if there is none (a zombie is none either)."""
    try:
        text = Path(f"/proc/{int(pid)}/stat").read_text()
    except OSError:
        return None
    # The command's name stands in parentheses and may hold anything; state is the first field after, start the 20th.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
