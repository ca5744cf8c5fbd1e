"""The trace of one sample of each task, kept beside a run's samples: ``traces/<task>.jsonl`` (design 1.3).

One example a task is enough to look at, and only while that request runs does the engine work out what a trace
holds. Lines wait in memory, some 0.3 kB a token, and reach the disk once the sample is there, so that a run without
samples has no traces; a kill between the two costs the trace, which nothing is computed from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.base.files import write_bytes
from resetcli.base.reporting import Reporter
from resetcli.engines.protocol import TokenEvent
from resetcli.evaluation.jobs import Job
from resetcli.policy.settings import PolicySettings

Key = tuple[str, Any, int]


def trace_path(folder: Path, task: str) -> Path:
    """Where the run in ``folder`` keeps the trace of ``task``'s example."""
    return Path(folder) / "traces" / f"{task}.jsonl"


class ExampleTraces:
    """Traces of the first sample of each task that is to be made; a task that has one gets no other.

    ``names``: the requests to watch, once ``choose`` was called.
    """

    def __init__(
        self, folder: Path, policies: Mapping[str, PolicySettings], *, model: str, seed: int, reporter: Reporter
    ):
        self.folder, self.policies, self.model, self.seed = folder, policies, model, seed
        self.reporter = reporter
        self.names: set[str] = set()
        self._names: dict[Key, str] = {}
        self._lines: dict[str, bytearray] = {}

    def choose(self, jobs: Iterable[tuple[str, Job]]) -> None:
        """Pick from the requests to come, (name, job) in order: of each task the first, or the one that its trace is
        of, which is then made again."""
        kept: dict[str, str | None] = {}
        for name, job in jobs:
            if job.task not in kept:
                kept[job.task] = _traced(trace_path(self.folder, job.task))
                if kept[job.task] is None:
                    kept[job.task] = name
            if kept[job.task] == name:
                self.names.add(name)
                self._names[_key(job)] = name
                self._lines[name] = bytearray()

    def on_token(self, event: TokenEvent) -> None:
        """Keep a watched request's token; others pass."""
        lines = self._lines.get(event.request)
        if lines is not None:
            lines += _line(vars(event))

    def finished(self, job: Job) -> None:
        """Write the trace of a watched sample that is on the disk now. What cannot be written is a warning."""
        name = self._names.pop(_key(job), "")
        lines = self._lines.pop(name, None)
        if not lines:
            return
        policy = self.policies[job.task].header()
        header = _line({"trace": 1, "policy": policy, "model": self.model, "seed": self.seed})
        try:
            write_bytes(trace_path(self.folder, job.task), header + lines)
        except ResetError as exc:
            self.reporter.warn(f"the trace of {name} is not kept: {exc}")


def _key(job: Job) -> Key:
    return job.task, job.doc_id, job.repeat


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "replace")


def _traced(path: Path) -> str | None:
    """The request that the trace at ``path`` is of; None if there is no trace to be read."""
    try:
        with open(path, "rb") as stream:
            stream.readline()
            return str(json.loads(stream.readline())["request"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
