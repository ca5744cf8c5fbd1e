"""Traces on disk: JSON Lines, a header and one line a generated token (design 1.3)."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from resetcli.base.errors import ResetError
from resetcli.engines.protocol import TokenEvent
from resetcli.policy.settings import PolicySettings


class TraceWriter:
    """Writes as tokens come, one whole line a write, so that an interrupted, killed or failed run keeps the tokens it
    drew and no torn line. Use as a context manager.

    Raises:
        ResetError: the file cannot be created or written; what is in it ends with a whole line.
    """

    def __init__(self, path: Path, *, settings: PolicySettings, model: str, seed: int):
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handle: int | None = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as exc:
            raise ResetError(f"cannot write the trace {path}: {exc.strerror or exc}; choose another file") from exc
        self._size = 0
        try:
            self._write({"trace": 1, "policy": settings.header(), "model": model, "seed": seed})
        except BaseException:
            self.close()
            raise

    def _write(self, value: object) -> None:
        assert self._handle is not None
        line = (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "replace")
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(self._handle, left) :]
        except OSError as exc:
            with contextlib.suppress(OSError):  # a pipe or a device has no size
                os.ftruncate(self._handle, self._size)
            raise ResetError(
                f"cannot write the trace {self.path}: {exc.strerror or exc}; free space or choose another file"
            ) from exc
        self._size += len(line)

    def on_token(self, event: TokenEvent) -> None:
        """Append one line; requests may be interleaved, tokens of one request are in order."""
        self._write(asdict(event))

    def close(self) -> None:
        """Release the file."""
        handle, self._handle = self._handle, None
        if handle is not None:
            try:
                os.close(handle)
            except OSError as exc:  # network file systems report a full disk here
                raise ResetError(f"cannot write the trace {self.path}: {exc.strerror or exc}") from exc

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
