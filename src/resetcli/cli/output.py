"""What a command shows: results on standard output, everything else on standard error.

While a command works, file descriptor 1 points at standard error, so that nothing a library prints, in Python or in
C, can get between a user's pipe and our result. Progress bars are drawn on a terminal only; elsewhere a phase is a
plain line, without escape codes or carriage returns.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from resetcli.base.errors import ResetError
from resetcli.base.reporting import Reporter

REMIND_SECONDS = 30.0
"""Off a terminal, a long phase says how far it is about this often."""


class RichReporter(Reporter):
    """Notes, warnings and phases on standard error: bars on a terminal, plain lines elsewhere.

    ``quiet`` leaves warnings only.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None):
        self.quiet = quiet
        self.stream = stream if stream is not None else sys.stderr
        self.bars = not quiet and self.stream.isatty() and os.environ.get("TERM") != "dumb"
        self._progress: Any = None
        self._open = 0

    def info(self, message: str) -> None:
        if not self.quiet:
            self._line(message)

    def warn(self, message: str) -> None:
        self._line(f"warning: {message}")

    def _line(self, text: str) -> None:
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            try:
                print(text, file=self.stream, flush=True)
            except BrokenPipeError:
                raise
            except OSError:
                # Notes that have nowhere to go, as on a full disk: the work and its result matter, not they.
                return

    @contextlib.contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        if self.bars:
            with self._bar(name, total) as advance:
                yield advance
        else:
            if not self.quiet:
                self._line(f"{name} ...")
            yield self._reminder(name, total)

    def _reminder(self, name: str, total: int | None) -> Callable[[int], None]:
        done, last, told = 0, time.monotonic(), False

        def advance(n: int = 1) -> None:
            nonlocal done, last, told
            done += n
            # The last step is told where a step before it was: a log that stops at 9 of 10 looks like a crash.
            if not self.quiet and (time.monotonic() - last >= REMIND_SECONDS or (told and done == total)):
                last, told = time.monotonic(), True
                self._line(f"{name}: {done}" + (f" of {total}" if total else ""))

        return advance

    @contextlib.contextmanager
    def _bar(self, name: str, total: int | None) -> Iterator[Callable[[int], None]]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(file=self.stream),
                transient=True,
            )
            self._progress.start()
        progress = self._progress
        task = progress.add_task(name, total=total)
        self._open += 1
        started = time.monotonic()

        def advance(n: int = 1) -> None:
            progress.advance(task, n)

        try:
            yield advance
        finally:
            progress.remove_task(task)
            self._open -= 1
            if not self._open:
                progress.stop()
                self._progress = None
        self._line(f"{name}: {time.monotonic() - started:.1f} s")


class Output:
    """One command's results. ``reporter`` is what the library talks to; ``json`` makes the result a document."""

    def __init__(self, *, json: bool, quiet: bool, debug: bool):
        self.json = json
        self.reporter = RichReporter(quiet=quiet)
        self.stream = _keep_stdout()
        if not debug:
            _hush()

    @property
    def unicode(self) -> bool:
        """Whether standard output can show block characters."""
        return (self.stream.encoding or "").lower().replace("-", "") == "utf8"

    def result(self, document: Mapping[str, Any], text: str | Callable[[], str]) -> None:
        """Print the result: the document with ``--json``, else the text."""
        if self.json:
            self.write(json.dumps(finite(document), indent=2, ensure_ascii=not self.unicode, allow_nan=False) + "\n")
        else:
            self.write((text if isinstance(text, str) else text()) + "\n")

    def write(self, text: str) -> None:
        """Text on the real standard output, at once.

        Raises:
            ResetError: it cannot take it, as a file on a full disk. A reader that has gone is a BrokenPipeError still.
        """
        try:
            self.stream.write(text)
            self.stream.flush()
        except BrokenPipeError:
            raise
        except OSError as exc:
            raise _not_written(exc) from exc


def _not_written(exc: OSError) -> ResetError:
    if exc.errno == errno.EBADF:
        return ResetError("standard output is closed, and the result goes there; leave it open, or name a file by >")
    return ResetError(f"cannot write standard output: {exc.strerror or exc}; free space, and run the command again")


def stdout_error(exc: OSError) -> ResetError | None:
    """What to say of an error that no ``Output`` has met: of ``--help`` and the like, which Typer prints itself."""
    return _not_written(exc) if _kept is None and exc.filename is None else None


_kept: TextIO | None = None


def _keep_stdout() -> TextIO:
    """The real standard output; descriptor 1 and ``sys.stdout`` become standard error until ``restore_stdout``.

    Raises:
        ResetError: it is closed; better known before the work than after it.
    """
    global _kept
    if _kept is None:
        sys.stdout.flush()
        try:
            os.write(1, b"")
        except OSError as exc:
            raise _not_written(exc) from exc
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        _kept = os.fdopen(os.dup(1), "w", encoding=encoding, errors="replace", newline="\n")
        os.dup2(2, 1)
    return _kept


def restore_stdout() -> None:
    """Undo what ``Output`` did to descriptor 1."""
    global _kept
    if _kept is not None:
        with contextlib.suppress(BrokenPipeError, ValueError):
            sys.stdout.flush()
        os.dup2(_kept.fileno(), 1)
        stream, _kept = _kept, None
        # What could not be written has been told of already, and closing tries once more.
        with contextlib.suppress(OSError):
            stream.close()


def _hush() -> None:
    """Libraries say nothing below an error; their bars are off. Set before they are imported."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")


def finite(value: Any) -> Any:
    """``value`` with what JSON has no word for, NaN and the infinities, as null."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns aligned with spaces: numbers to the right, text to the left, nothing cut off."""
    cells = [[cell(v) for v in row] for row in rows]
    widths = [max(len(c), *(len(row[i]) for row in cells)) if cells else len(c) for i, c in enumerate(columns)]
    right = [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(v.rjust(w) if r else v.ljust(w) for v, w, r in zip(row, widths, right, strict=True)).rstrip()

    return "\n".join([line(columns), *(line(row) for row in cells)])


def pairs(rows: Sequence[tuple[str, Any]]) -> str:
    """Name and value, one pair a line."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name.ljust(width)}  {cell(value)}".rstrip() for name, value in rows)


def cell(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(cell(v) for v in value)
    return str(value)


def size(n: float) -> str:
    """Bytes for people.

    >>> size(999), size(113_000_000)
    ('999 B', '113 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"
