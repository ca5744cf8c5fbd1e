"""math-verify in a process of its own, so that its time limit holds.

Its own time limits are SIGALRM handlers, which work in the main thread only and not inside long C routines. The
process (``worker.py``) is started at the first comparison that needs it and ended by the kernel when time is up.
"""

from __future__ import annotations

import atexit
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

from resetcli.base.errors import ResetError

TIME_LIMIT = 5.0
"""Seconds for one comparison by math-verify."""


class Grader:
    """math-verify behind a pipe, started at the first comparison that needs it. Safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def equal(self, gold: str, answer: str, seconds: float = TIME_LIMIT) -> bool:
        """math-verify's verdict; False when ``seconds`` (wall clock) are over.

        Raises:
            ResetError: math-verify raised, or its process died twice of something else than the time limit.
        """
        request = json.dumps({"gold": gold, "answer": answer, "seconds": seconds}) + "\n"
        with self._lock:
            for _ in range(2):
                process = self._start()
                assert process.stdin is not None and process.stdout is not None
                try:
                    process.stdin.write(request)
                    process.stdin.flush()
                    line = process.stdout.readline()
                except BrokenPipeError:
                    line = ""
                except BaseException:  # Ctrl-C: the reply on its way would be taken for the next one's
                    self._end()
                    raise
                if line:
                    break
                code = process.wait()
                self._process = None
                if code == -signal.SIGALRM:
                    return False
            else:
                raise ResetError(f"the process that compares answers died (exit code {code}) on {answer[:80]!r}")
        reply = json.loads(line)
        if "error" in reply:
            raise ResetError(f"comparing the answer {answer[:80]!r} with its key failed: {reply['error']}")
        return bool(reply["equal"])

    def close(self) -> None:
        """End the process; the next call starts another."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        # -P keeps this folder off the path; a session of its own keeps Ctrl-C for us.
        worker = [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))]
        process = subprocess.Popen(
            worker,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            process.kill()
            process.communicate()
            raise ResetError("cannot start math-verify, which compares answers; check that math-verify is installed")
        self._process = process
        return process


GRADER = Grader()
atexit.register(GRADER.close)
