"""The process that runs math-verify, one JSON line in and one out; see ``grader.Grader``.

Run as a file, so it imports nothing of resetcli and starts in the time sympy takes. Each comparison runs under an
interval timer whose signal keeps its default action: the kernel ends the process, even inside a C routine that
never returns to Python (9^(9^9) is one), and no orphan goes on computing. Memory is limited likewise.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys

MEMORY = 4 << 30


def main() -> None:
    """Serve requests {"gold", "answer", "seconds"} with {"equal"} or {"error"} until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    from math_verify import parse, verify

    def side(text: str) -> list:
        return parse(f"${text}$", parsing_timeout=None, raise_on_error=True)

    out = sys.stdout
    sys.stdout = sys.stderr
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["seconds"])
        reply: dict[str, bool | str]
        try:
            gold, answer = side(request["gold"]), side(request["answer"])
            # Left alone, it makes an unequal of an error of its own.
            reply = {"equal": bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True))}
        except (MemoryError, RecursionError):  # limits like that of time: the text is too much, nothing is broken
            reply = {"equal": False}
        except Exception as exc:  # math-verify on a model's text raises anything sympy can; the grader is told which
            reply = {"error": f"{type(exc).__name__}: {exc}"[:500]}
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
