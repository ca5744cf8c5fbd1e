"""How long work tells of itself without knowing who listens: phases with progress, notes and warnings.

The command line passes a reporter that draws on stderr; the default says nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


def _nothing(n: int = 1) -> None:
    """Progress that nobody watches."""


class Reporter:
    """Silent reporter, and the interface of the others."""

    def info(self, message: str) -> None:
        """One line a user should see once."""

    def warn(self, message: str) -> None:
        """One line about something that is probably not what the user wants."""

    @contextlib.contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """A named phase of ``total`` units; the yielded function advances it by n units."""
        yield _nothing


class CollectingReporter(Reporter):
    """Keeps what it is told; for tests and for reports that list their warnings."""

    def __init__(self) -> None:
        self.infos: list[str] = []
        self.warnings: list[str] = []
        self.phases: list[str] = []

    def info(self, message: str) -> None:
        self.infos.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    @contextlib.contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        self.phases.append(name)
        yield _nothing
