"""The errors a user sees: one line that names the thing, the cause and the remedy.

The command line prints ``error: <message>`` and exits with ``exit_code``; a traceback appears only with
``--debug``. Library code raises these and nothing vaguer for anything the user can mend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class ResetError(Exception):
    """The work failed (bad checkpoint, missing data, NaN logits): exit code 1."""

    exit_code = 1

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


class UsageError(ResetError):
    """The call itself is wrong (bad option, unknown name): exit code 2."""

    exit_code = 2


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """A ``UsageError`` for a name outside a registry, with the nearest known names.

    >>> str(unknown_name("task", "aimee", ["aime", "gpqa"]))
    "unknown task 'aimee': did you mean aime? (known: aime, gpqa)"
    """
    import difflib

    known = sorted(known)
    near: Sequence[str] = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f": did you mean {' or '.join(near)}?" if near else ""
    return UsageError(f"unknown {kind} '{name}'{hint} (known: {', '.join(known)})")
