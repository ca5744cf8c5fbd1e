"""What the process as a whole needs: Ctrl-C that ends it once and tidily, and three standard streams.

The first SIGINT raises KeyboardInterrupt, as ever. Those that follow while it unwinds would only break the clean-up,
so they are passed over for ``PATIENCE`` seconds. Where Python must swallow it (in a destructor or a callback) it is
sent again. A closed descriptor 1 or 2 would be given to the next file opened, and libraries would print into that
file; so both are filled before anything is opened.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

PATIENCE = 3.0
"""Seconds after an interruption in which further ones are ignored."""

_last: float | None = None


def interrupted() -> bool:
    """Whether a SIGINT has come."""
    return _last is not None


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """SIGINT as described above inside the block; nothing new if it is so already, is ignored, or handled elsewhere."""
    global _last
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        signal.signal(signal.SIGINT, _on_interrupt)
    except ValueError:  # not the main thread
        yield
        return
    _last, hook = None, sys.unraisablehook
    sys.unraisablehook = lambda args: _unraisable(args, hook)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        if signal.getsignal(signal.SIGINT) is _on_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore_interrupts() -> None:
    """The work is done and its code stands: what is left is to end. Only where ``interrupts`` is in force."""
    if signal.getsignal(signal.SIGINT) is _on_interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _on_interrupt(*_: Any) -> None:
    global _last
    now = time.monotonic()
    if _last is not None and now - _last < PATIENCE:
        return
    _last = now
    raise KeyboardInterrupt


def _unraisable(args: Any, otherwise: Any) -> None:
    global _last
    if not issubclass(args.exc_type, KeyboardInterrupt):
        otherwise(args)
        return
    import threading

    _last = None
    again = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    again.start()


def open_streams() -> None:
    """Fill closed descriptors 0 to 2. Writes to a closed standard output go on to fail, those to standard error don't.

    Nothing is done about streams that are open.
    """
    # Read-only on purpose for 1: a write then fails as it would on the closed descriptor.
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            handle = os.open(os.devnull, flags)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            os.set_inheritable(number, True)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115


def close_streams(code: int) -> int:
    """Write out what the streams hold; the exit code: ``code``, or 1 if it was 0 and standard output failed.

    A stream that cannot be written is pointed at nowhere, or Python would complain once more at its end.
    """
    for stream, number in ((sys.stderr, 2), (sys.stdout, 1)):
        try:
            stream.flush()
        except (OSError, ValueError) as exc:
            if number == 1 and not code:
                code = 1
                if not isinstance(exc, BrokenPipeError):
                    say(f"cannot write standard output: {getattr(exc, 'strerror', None) or exc}")
            with contextlib.suppress(OSError, ValueError):
                handle = os.open(os.devnull, os.O_WRONLY)
                os.dup2(handle, number)
                os.close(handle)
                stream.flush()
    return code


def say(message: str) -> None:
    """``error: <message>`` as one line on standard error, written at once; nowhere if that is closed or full."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"error: {' '.join(message.split())}\n")
        sys.stderr.flush()
