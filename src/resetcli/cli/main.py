"""The entry point: nothing but a guard around ``cli.app``, which takes a while to import.

Ctrl-C may come at any moment, the first imports included, and the streams may be closed; so this module imports
next to nothing, sees to both, and only then loads the application.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130


def run() -> None:
    """Entry point of ``reset`` and ``resetcli``."""
    code = INTERRUPTED
    try:
        from resetcli.cli import process

        with process.interrupts():
            code = process.close_streams(main(sys.argv[1:]))
            process.ignore_interrupts()
    except KeyboardInterrupt:  # before or after ``main`` could see to it
        code = INTERRUPTED
        if sys.stderr is not None:
            sys.stderr.write("error: interrupted\n")
    sys.exit(code)


def main(args: list[str]) -> int:
    """Run the command line ``args``; the exit code: 0 done, 1 the work failed, 2 usage, 130 interrupted."""
    from resetcli.cli import process

    process.open_streams()
    with process.interrupts():
        try:
            from resetcli.cli.app import execute

            return execute(args)
        except KeyboardInterrupt:
            process.say("interrupted")
            return INTERRUPTED
        except ImportError:
            # An import that Ctrl-C broke into may say so in its own way.
            if not process.interrupted():
                raise
            process.say("interrupted")
            return INTERRUPTED
