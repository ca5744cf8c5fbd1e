"""Which documents of its tasks a run asks for: all, the first N, or those named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resetcli.base.errors import UsageError

Documents = dict[str, list[dict[str, Any]]]
"""Documents by task name; each has "doc_id"."""


@dataclass(frozen=True)
class Selection:
    """``limit``: the first so many of each task (of those named, if any); ``doc_ids``: those named; None is all."""

    limit: int | None = None
    doc_ids: tuple[str, ...] | None = None

    @property
    def limited(self) -> bool:
        """Whether a run of it is to be marked: its scores are not those of the whole tasks."""
        return self.limit is not None or self.doc_ids is not None

    @property
    def named(self) -> list[str] | None:
        """``doc_ids`` as JSON has it."""
        return list(self.doc_ids) if self.doc_ids is not None else None

    @property
    def words(self) -> str:
        """What it comes to, for people; empty for all documents."""
        if not self.limited:
            return ""
        first = "" if self.limit is None else f"the first {self.limit} documents of a task"
        if self.doc_ids is None:
            return first
        shown = ", ".join(self.doc_ids[:5]) + (f" and {len(self.doc_ids) - 5} more" if len(self.doc_ids) > 5 else "")
        return f"{first}{' among ' if first else ''}the documents {shown}"

    def indices(self, docs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[int]]:
        """By task, the places of the chosen documents, ascending.

        Raises:
            UsageError: a name that no task has, or a task with none of those named.
        """
        if self.doc_ids is None:
            return {task: list(range(len(rows)))[: self.limit] for task, rows in docs.items()}
        wanted = set(self.doc_ids)
        unknown = wanted - {str(row["doc_id"]) for rows in docs.values() for row in rows}
        if unknown:
            names = ", ".join(name for name in self.doc_ids if name in unknown)
            raise UsageError(f"--doc-ids: no document {names} in {', '.join(docs)}")
        found = {task: [i for i, row in enumerate(rows) if str(row["doc_id"]) in wanted] for task, rows in docs.items()}
        if empty := [task for task, places in found.items() if not places]:
            raise UsageError(f"--doc-ids names no document of {', '.join(empty)}; leave that task out of --tasks")
        return {task: places[: self.limit] for task, places in found.items()}


def parse_doc_ids(names: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """``"a,b"`` (spaces and a trailing comma allowed) or a list, each once, sorted, since
    their order changes nothing and must not make another run; None stays None.

    Raises:
        UsageError: it names nothing.
    """
    if names is None:
        return None
    parts = [part.strip() for part in (names.split(",") if isinstance(names, str) else names)]
    if not (found := tuple(sorted(set(filter(None, parts))))):
        raise UsageError("--doc-ids names no document; leave it out for all")
    return found
