"""A sample to make, the text it gives, and who keeps it: what the lm-eval adapter and a run's bookkeeping share.

Needs no lm-eval, so the bookkeeping can be used and tested without it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from resetcli.engines.protocol import TokenEvent
from resetcli.engines.thoughts import DEFAULT


class Output(str):
    """A generated text that remembers how it ended; ``record`` has its score where a run keeps it."""

    finish_reason: str | None = None
    opened_in_prompt: bool = False
    markers: tuple[str, str] = DEFAULT
    record: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One sample to make. ``ids`` is the prompt; ``fits`` tells whether the context has room for a token after it."""

    task: str
    doc_id: Any
    repeat: int
    seed: int
    prompt: str
    ids: tuple[int, ...]
    limit: int
    stop: tuple[str, ...]
    doc: Mapping[str, Any]
    opened_in_prompt: bool
    fits: bool

    @property
    def prompt_sha256(self) -> str:
        """Of the prompt's UTF-8 text, chat template applied."""
        return hashlib.sha256(self.prompt.encode("utf-8", "replace")).hexdigest()


class Recorder(Protocol):
    """Who keeps samples as they finish."""

    def known(self, job: Job) -> Mapping[str, Any] | None:
        """The record of a sample that need not be made again."""
        ...

    def plan(self, jobs: Sequence[Job]) -> None:
        """Told once, before generating, what is left to make."""
        ...

    def watch(self, requests: Iterable[tuple[str, Job]]) -> tuple[Collection[str], Callable[[TokenEvent], None]]:
        """Of the requests to come, by name: the names of those whose tokens it wants, and who takes them."""
        ...

    def add(self, job: Job, text: str, n_tokens: int, finish_reason: str, error: str | None) -> Mapping[str, Any]:
        """Keep a finished sample; its record."""
        ...

    def add_likelihood(self, job: Job, loglikelihood: float, n_tokens: int) -> Mapping[str, Any]:
        """Keep the log-likelihood (nats) of a text; its record."""
        ...


def make_output(
    text: str, finish_reason: str, job: Job, markers: tuple[str, str], record: Mapping[str, Any] | None
) -> Output:
    """The text for lm-eval, with how it ended, what marks its thought, and its score where a run has kept it.

    A kept sample's text is on the disk and all that lm-eval needs is its score: samples that ended alike share one.
    """
    if record is not None:
        return _kept(finish_reason, job.opened_in_prompt, markers, record["score"])
    return _output(text, finish_reason, job.opened_in_prompt, markers, None)


@functools.lru_cache(64)
def _kept(finish_reason: str, opened: bool, markers: tuple[str, str], score: float) -> Output:
    return _output("", finish_reason, opened, markers, {"score": score})


def _output(
    text: str, finish_reason: str, opened: bool, markers: tuple[str, str], record: Mapping[str, Any] | None
) -> Output:
    output = Output(text)
    output.markers = markers
    output.finish_reason, output.opened_in_prompt, output.record = finish_reason, opened, record
    return output
