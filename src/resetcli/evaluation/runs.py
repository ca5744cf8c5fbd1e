"""A run on disk: ``run.json``, ``samples.jsonl``, ``results.json``, and going on after a kill at any point.

A sample is appended as one line by one write and flushed to the disk before the next is begun, so a kill leaves at
most one torn line at the end, which the next opening cuts off. What may not change between sittings stands in
``run.json`` under "settings"; a difference is refused by name, so samples of two kinds never share a file. One
writer at a time holds an exclusive lock that the kernel drops with the process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.base.files import read_json, write_json

SAMPLE_KEYS = (
    "task", "doc_id", "repeat", "seed", "prompt_sha256", "text", "n_tokens", "finish_reason", "answer", "target",
    "score", "why",
)  # fmt: skip
"""The keys of a line of samples.jsonl, all and in this order."""

RUN, SAMPLES, RESULTS, LOCK = "run.json", "samples.jsonl", "results.json", "run.lock"

Key = tuple[str, Any, int]
"""(task, doc_id, repeat): what identifies a sample."""


def settings_hash(settings: dict[str, Any]) -> str:
    """Hex SHA-256 of the settings as JSON with sorted keys and no spaces."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def default_directory(model: str, tasks: list[str], settings: dict[str, Any], root: Path | None = None) -> Path:
    """``./reset-runs/<model>-<tasks>-<first 8 hex of the settings' hash>``, long names shortened."""
    name = re.sub(r"[^\w.+-]+", "_", f"{model[:100]}-{'-'.join(tasks)[:100]}")
    return (root or Path.cwd()) / "reset-runs" / f"{name}-{settings_hash(settings)[:8]}"


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """What differs, as "key (old, now new)", by dotted key; empty if nothing does."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [d for key in keys for d in differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)]
    if old == new:
        return []
    was, now = ("there" if isinstance(v, dict) else json.dumps(v, ensure_ascii=False) for v in (old, new))
    return [f"{name} ({was}, now {now})"]


class RunFolder:
    """One run's folder, locked for writing. Use as a context manager.

    Args:
        path: made if missing.
        settings: what must be equal for samples to share the folder; a JSON object.

    Raises:
        ResetError: not a run's folder, another writer, other settings (named), a damaged file, no room.
    """

    def __init__(self, path: Path, settings: dict[str, Any]):
        self.path = Path(path)
        self.settings = json.loads(json.dumps(settings))
        self._lock: int | None = _lock(self.path)
        self._out: int | None = None
        try:
            self.header = self._read_header()
            if self.header is not None:
                self.check("settings", self.settings)
            self.samples: dict[Key, dict[str, Any]] = {}
            self._load_samples()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file and the lock."""
        for handle in (self._out, self._lock):
            if handle is not None:
                os.close(handle)
        self._out = self._lock = None

    def _read_header(self) -> dict[str, Any] | None:
        if not (self.path / RUN).exists():
            strangers = [p.name for p in self.path.iterdir() if p.name != LOCK and not p.name.startswith(".tmp-")]
            if strangers:
                raise ResetError(
                    f"output directory {self.path} is not empty and holds no {RUN}; choose another with -o"
                )
            return None
        header = read_json(self.path / RUN)
        if not isinstance(header, dict) or not isinstance(header.get("settings"), dict):
            raise ResetError(f"{self.path / RUN} is not the record of a run; choose another directory with -o")
        return header

    def check(self, section: str, value: dict[str, Any]) -> None:
        """Refuse if ``run.json`` has another ``section``.

        Raises:
            ResetError: what differs, by name, old against new.
        """
        assert self.header is not None
        changed = differences(self.header.get(section), json.loads(json.dumps(value)))
        if changed:
            raise ResetError(
                f"run {self.path} was begun with other settings: {'; '.join(changed)}; repeat them or choose another -o"
            )

    def begin(self, header: dict[str, Any]) -> None:
        """Write ``run.json``: ``header`` with the settings."""
        self.header = {**header, "settings": self.settings}
        write_json(self.path / RUN, self.header)

    def _load_samples(self) -> None:
        path = self.path / SAMPLES
        if not path.exists():
            return
        whole = 0
        with open(path, "rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                self._remember(_parse(line, path, number), f"{path}, line {number}")
        if whole < path.stat().st_size:
            with open(path, "rb+") as stream:
                stream.truncate(whole)
                os.fsync(stream.fileno())

    def _remember(self, sample: dict[str, Any], where: str) -> None:
        key = (sample["task"], sample["doc_id"], sample["repeat"])
        if key in self.samples:
            raise ResetError(f"{where}: a second sample of task {key[0]}, document {key[1]}, repeat {key[2]}")
        # Texts stay on the disk: a run of many long thoughts would not fit into memory.
        self.samples[key] = {k: sample[k] for k in SAMPLE_KEYS if k != "text"}

    def add(self, sample: dict[str, Any]) -> None:
        """Append one sample (exactly ``SAMPLE_KEYS``); it is on the disk when this returns.

        Raises:
            ResetError: the disk is full or failing; the file keeps its whole lines only.
        """
        assert tuple(sample) == SAMPLE_KEYS, f"a sample has exactly the keys {SAMPLE_KEYS}"
        line = (json.dumps(sample, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "replace")
        self._remember(sample, str(self.path / SAMPLES))
        size: int | None = None
        try:
            if self._out is None:
                self._out = os.open(self.path / SAMPLES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            size = os.fstat(self._out).st_size
            left = memoryview(line)
            while left:
                left = left[os.write(self._out, left) :]
            os.fsync(self._out)
        except OSError as exc:
            if self._out is not None and size is not None:
                os.ftruncate(self._out, size)
            raise ResetError(
                f"cannot write {self.path / SAMPLES}: {exc.strerror or exc}; free space, and the same command goes on"
            ) from exc

    def of_task(self, task: str) -> list[dict[str, Any]]:
        """The task's sample records without text, sorted by document id (as text) and repeat."""
        found = [sample for key, sample in self.samples.items() if key[0] == task]
        return sorted(found, key=lambda s: (str(s["doc_id"]), s["repeat"]))

    def results(self) -> dict[str, Any] | None:
        """``results.json``, or None while the run is not finished."""
        return read_json(self.path / RESULTS) if (self.path / RESULTS).exists() else None

    def finish(self, results: dict[str, Any]) -> None:
        """Write ``results.json``."""
        write_json(self.path / RESULTS, results)


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a run's samples.jsonl, or of that file, one at a time; a torn last line is left out.

    Raises:
        ResetError: missing, or a line that is no sample.
    """
    path = Path(path)
    path = path / SAMPLES if path.is_dir() else path
    try:
        with open(path, "rb") as stream:
            for number, line in enumerate(stream, 1):
                if line.endswith(b"\n"):
                    yield _parse(line, path, number)
    except OSError as exc:
        raise ResetError(f"cannot read {path}: {exc.strerror or exc}") from exc


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        sample = json.loads(line)
    except ValueError as exc:
        raise ResetError(f"{path}, line {number} is not JSON ({exc}); restore the file or choose another -o") from exc
    if not isinstance(sample, dict) or set(sample) != set(SAMPLE_KEYS):
        raise ResetError(f"{path}, line {number} is not a sample of a run; restore the file or choose another -o")
    return sample


def _lock(path: Path) -> int:
    """Make ``path`` and take its lock; the descriptor holds it."""
    if path.exists() and not path.is_dir():
        raise ResetError(f"output {path} is a file; choose another name with -o")
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as exc:
        raise ResetError(f"cannot write {path}: {exc.strerror or exc}; choose another folder with -o") from exc
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(handle)
        raise ResetError(f"run {path} is being written by another process; wait for it, or choose another -o") from exc
    return handle
