"""Traces on disk: JSON Lines, a header and one line a generated token (design 1.3)."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from resetcli.base.errors import ResetError
from resetcli.engines.protocol import TokenEvent
from resetcli.policy.settings import PolicySettings


class TraceWriter:
    """Writes as tokens come, so that an interrupted run keeps the tokens it drew. Use as a context manager.

    Raises:
        ResetError: the file cannot be created or written.
    """

    def __init__(self, path: Path, *, settings: PolicySettings, model: str, seed: int):
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = open(self.path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by close)
        except OSError as exc:
            raise ResetError(f"cannot write the trace {path}: {exc.strerror or exc}") from exc
        self._write({"trace": 1, "policy": settings.header(), "model": model, "seed": seed})

    def _write(self, value: object) -> None:
        try:
            self._stream.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as exc:
            raise ResetError(f"cannot write the trace {self.path}: {exc.strerror or exc}; free disk space") from exc

    def on_token(self, event: TokenEvent) -> None:
        """Append one line; requests may be interleaved, tokens of one request are in order."""
        self._write(asdict(event))

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
