"""Between adapter and folder: what is left to make, how long that may take, and each sample scored and stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from resetcli.base.errors import ResetError
from resetcli.base.reporting import Reporter
from resetcli.engines.protocol import Engine, Request, TokenEvent
from resetcli.evaluation import failures
from resetcli.evaluation.jobs import Job
from resetcli.evaluation.judge import Judge
from resetcli.evaluation.runs import RunFolder
from resetcli.evaluation.tasks import TaskSpec
from resetcli.evaluation.traces import ExampleTraces
from resetcli.policy.settings import PolicySettings

PROBE_TOKENS = 16
"""Tokens of each probe request: enough to time decoding, a second or so on a CPU with a small model."""


class RunRecorder:
    """Implements ``jobs.Recorder`` over a ``RunFolder``.

    ``made``, ``tokens``, ``seconds``: samples and tokens generated in this sitting, and the time from the first
    request to the last sample; ``bookkeeping``: seconds of that spent on scoring and storing; ``by_task``: tokens and
    seconds of each task.
    """

    def __init__(
        self,
        folder: RunFolder,
        engine: Engine,
        specs: Sequence[TaskSpec],
        policies: Mapping[str, PolicySettings],
        repeats: int,
        expected: int,
        markers: tuple[str, str],
        reporter: Reporter,
        max_failed: float = failures.MAX_FAILED,
        allow_code: bool = False,
    ):
        self.folder = folder
        self.engine = engine
        self.judge = Judge(specs, markers, allow_code=allow_code)
        self.policies = policies
        self.repeats = repeats
        self.expected = expected
        self.reporter = reporter
        self.max_failed = max_failed
        self.advance: Callable[[int], None] = lambda n: None
        self.made = self.tokens = 0
        self.seconds = self.bookkeeping = self._before = 0.0
        self.by_task: dict[str, dict[str, float]] = {}
        self.traces = ExampleTraces(
            folder.path, policies, model=engine.info.model, seed=folder.settings.get("seed", 0), reporter=reporter
        )
        self._second_look = self._left = 0
        self._started = time.perf_counter()

    def known(self, job: Job) -> Mapping[str, Any] | None:
        record = self.folder.samples.get((job.task, job.doc_id, job.repeat))
        if record is not None and record["prompt_sha256"] != job.prompt_sha256:
            raise ResetError(
                f"run {self.folder.path} holds task {job.task}, document {job.doc_id} with another prompt (the chat "
                f"template or tokenizer changed); choose another -o"
            )
        return record

    def plan(self, jobs: Sequence[Job]) -> None:
        """Say how much is left and, from a short measurement, how long it takes at most."""
        documents = len({(job.task, job.doc_id) for job in jobs})
        most = sum(job.limit for job in jobs)
        if not jobs:
            return
        longest = max(job.limit for job in jobs)
        line = " x ".join(counted(n, what) for n, what in ((documents, "document"), (self.repeats, "repeat")))
        line += f" x {longest} tokens"
        if len(jobs) != documents * self.repeats:
            line += f", of which {len(jobs)} samples are left to make"
        line += f": {most} tokens at most"
        if (speed := self._probe(jobs, most)) is not None:
            line += f"; at {speed:.1f} tokens/s, measured just now on a full batch of short texts, "
            line += f"{duration(most / speed)} if every sample ran to its limit at that speed"
        self.reporter.info(line)
        # Long texts and a batch that runs empty are slower than the probe, so the first samples speak once more.
        self._second_look = max(self.engine.info.batch_size, len(jobs) // 10) if len(jobs) > 20 else 0
        self._left = len(jobs)
        self._started, self._before = time.perf_counter(), 0.0

    def watch(self, requests: Iterable[tuple[str, Job]]) -> tuple[Collection[str], Callable[[TokenEvent], None]]:
        self.traces.choose(requests)
        return self.traces.names, self.traces.on_token

    def _probe(self, jobs: Sequence[Job], most: int) -> float | None:
        """Tokens/s of a first batch of these prompts, prefill apart, at a cost of a twentieth of the run or four tokens
        each, whichever is more; None where samples are too short to time."""
        batch = jobs[: self.engine.info.batch_size]
        steps = min(PROBE_TOKENS, max(4, most // (20 * len(batch))), *(job.limit for job in batch))
        if steps < 2:
            return None
        moments: list[float] = []
        requests = [Request(f"probe/{i}", job.ids, job.seed, steps, ignore_eos=True) for i, job in enumerate(batch)]
        policy = self.policies[batch[0].task]
        for _ in self.engine.generate(requests, policy, on_token=lambda event: moments.append(time.perf_counter())):
            pass
        # Prompts are read one after the other before the batch is full, so the last token's steps tell the speed.
        last = moments[-len(batch) * (steps // 2) - 1 :]
        spent = last[-1] - last[0] if len(last) > 1 else 0.0
        return (len(last) - 1) / spent if spent > 0 else None

    def add(self, job: Job, text: str, n_tokens: int, finish_reason: str, error: str | None) -> Mapping[str, Any]:
        started = time.perf_counter()
        if error is not None:
            self.reporter.warn(f"task {job.task}, document {job.doc_id}, repeat {job.repeat}: {error}")
        score = self.judge.score(job.task, job.doc, text, finish_reason, opened_in_prompt=job.opened_in_prompt)
        record = self._store(
            job, text, n_tokens, finish_reason, score.answer, job.doc["target"], score.score, score.why
        )
        self.bookkeeping += time.perf_counter() - started
        self._end_if_hopeless(record)
        return record

    def _end_if_hopeless(self, record: Mapping[str, Any]) -> None:
        samples = self.folder.samples
        if not (record["empty"] or record["finish_reason"] == "error") or self._left <= 0:
            return
        if samples.failed + samples.empty < failures.AT_LEAST:
            return
        if failures.too_many(samples, self.expected, self.max_failed):
            raise ResetError(
                f"run {self.folder.path} is ended: {failures.counts(samples)}, more than --max-failed "
                f"{self.max_failed:g} of its {self.expected} allows: mend the model or its settings"
            )

    def add_likelihood(self, job: Job, loglikelihood: float, n_tokens: int) -> Mapping[str, Any]:
        """A text's sample has no output; "score" is its log-likelihood in nats and "why" says so."""
        return self._store(job, "", n_tokens, "stop", None, None, loglikelihood, "loglikelihood")

    def _store(
        self, job: Job, text: str, n_tokens: int, finish_reason: str, answer: Any, target: Any, score: float, why: str
    ) -> Mapping[str, Any]:
        self.folder.add(
            {
                "task": job.task, "doc_id": job.doc_id, "repeat": job.repeat, "seed": job.seed,
                "prompt_sha256": job.prompt_sha256, "text": text, "n_tokens": n_tokens,
                "finish_reason": finish_reason, "answer": answer, "target": target, "score": score, "why": why,
                "prompt": job.prompt,
            }
        )  # fmt: skip
        self.traces.finished(job)
        self.made += 1
        self.tokens += n_tokens
        self.seconds = time.perf_counter() - self._started
        speed = self.by_task.setdefault(job.task, {"tokens": 0, "seconds": 0.0})
        speed["tokens"] += n_tokens
        # From the sample before to this one: tasks are decoded one after the other, save for a batch in between.
        speed["seconds"] += self.seconds - self._before
        self._before = self.seconds
        self._left -= 1
        if self.made == self._second_look:
            rest = self._left * self.seconds / self.made
            self.reporter.info(f"{self.made} samples took {duration(self.seconds)}: about {duration(rest)} to go")
        self.advance(1)
        return self.folder.samples[(job.task, job.doc_id, job.repeat)]


def duration(seconds: float) -> str:
    """A length of time for people.

    >>> duration(42), duration(700), duration(40000)
    ('42 s', '12 min', '11.1 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def counted(n: int, what: str) -> str:
    """ "1 document", "2 documents"."""
    return f"{n} {what}" + "s" * (n != 1)
