"""tau_0: a percentile of the entropies of the model's own tokens on a few problems (design 1.3).

The engine that decodes later also generates here and hands over the entropies its policy saw, so calibration
and decoding share one definition of H_t by construction. Everything needed to compare with the unquantized
model afterwards (prompts, tokens, entropies) stays in the result, so the engine can be closed first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import Reporter
from resetcli.base.versions import versions
from resetcli.calibration.asking import ask
from resetcli.calibration.distribution import (
    Bootstrap,
    Histogram,
    bootstrap_percentile,
    entropy_percentiles,
    histogram,
    render_histogram,
)
from resetcli.calibration.distribution import (
    percentile as percentile_of,
)
from resetcli.engines.protocol import Completion, Engine, EngineInfo, Request, TokenEvent
from resetcli.policy.settings import PolicySettings

if TYPE_CHECKING:
    from resetcli.data.problems import ProblemSet

SETTINGS = PolicySettings(name="fixed", temperature=0.6, top_p=0.95)
"""How calibration answers are drawn (design 1.3)."""


@dataclass(frozen=True)
class Answer:
    """One calibration answer: its prompt, its tokens (the end token too) and their entropies, float64 [n] in nats."""

    problem_id: str | int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    entropies: np.ndarray
    cut: bool


@dataclass(frozen=True)
class CalibrationResult:
    """What calibration found. Entropies in nats; ``answers`` in the order of the problems; ``seconds`` of wall time."""

    tau_0: float
    percentile: float
    percentiles: dict[str, float]
    bootstrap: Bootstrap
    histogram: Histogram
    answers: list[Answer]
    dataset: str
    dataset_sha256: str | None
    settings: PolicySettings
    max_new_tokens: int
    seed: int
    info: EngineInfo
    seconds: float
    warnings: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens over all answers."""
        return sum(len(answer.token_ids) for answer in self.answers)

    @property
    def cut(self) -> int:
        """Answers that reached the token limit before they ended."""
        return sum(answer.cut for answer in self.answers)

    def entropies(self) -> np.ndarray:
        """All tokens' entropies, float64 [tokens]."""
        return np.concatenate([answer.entropies for answer in self.answers])

    def section(self) -> dict[str, Any]:
        """The ``calibration`` object of ``reset_config.json`` (design 1.3)."""
        return {
            "percentile": self.percentile,
            "problems": len(self.answers),
            "tokens": self.tokens,
            "entropy_percentiles": self.percentiles,
            "dataset": self.dataset,
            "dataset_sha256": self.dataset_sha256,
            "problem_ids": [answer.problem_id for answer in self.answers],
            "temperature": self.settings.temperature,
            "top_p": self.settings.top_p,
            "policy": self.settings.name,
            "thinking": True,
            "max_new_tokens": self.max_new_tokens,
            "truncated": self.cut,
            "bootstrap": self.bootstrap.to_json(),
            "seed": self.seed,
            "model": self.info.model,
            "model_fingerprint": self.info.fingerprint,
            "engine": self.info.engine,
            "device": self.info.device,
            "dtype": self.info.dtype,
            "batch_invariant": self.info.batch_invariant,
            "versions": versions(),
        }

    def to_json(self) -> dict[str, Any]:
        """The document of ``reset calibrate --json``: the section, tau_0, the histogram and the times."""
        return {
            "tau_0": self.tau_0,
            "model": self.info.model,
            "calibration": self.section(),
            "histogram": self.histogram.to_json(),
            "answers": [{"problem_id": a.problem_id, "tokens": len(a.token_ids), "cut": a.cut} for a in self.answers],
            "warnings": self.warnings,
            "seconds": self.seconds,
        }

    def render(self, *, unicode: bool = True) -> str:
        """Percentiles, bootstrap and histogram as plain text."""
        spread = self.bootstrap
        if spread.low is None or spread.std is None:
            moved = "bootstrap: needs at least two problems"
        else:
            moved = (
                f"bootstrap over problems ({spread.draws} draws): "
                f"95 % {spread.low:.4f} to {spread.high:.4f}, standard deviation {spread.std:.4f}"
            )
        lines = [
            f"tau_0 {self.tau_0:.4f} nats ({self.percentile:g}th percentile of {self.tokens} tokens, "
            f"{len(self.answers)} problems, {self.dataset})",
            "percentiles  " + "  ".join(f"{q}: {value:.4f}" for q, value in self.percentiles.items()),
            moved,
            render_histogram(self.histogram, self.tau_0, unicode=unicode),
        ]
        return "\n".join(lines)


def calibrate(
    engine: Engine,
    problems: ProblemSet,
    *,
    settings: PolicySettings = SETTINGS,
    percentile: float = 80,
    max_new_tokens: int = 32768,
    seed: int = 0,
    draws: int = 1000,
    reporter: Reporter | None = None,
) -> CalibrationResult:
    """tau_0 of the engine's model: the percentile of H_t over all tokens it generates on ``problems``.

    Args:
        engine: generates and keeps the entropies; thinking is on wherever its chat template offers it.
        problems: each becomes one user message, unchanged.
        settings: how tokens are drawn; design 1.3 fixes ``fixed`` at T=0.6, top-p 0.95.
        percentile: 0 to 100, linear interpolation.
        max_new_tokens: limit of an answer; a smaller room in the context wins.
        seed: of the samples (``sample_seed(seed, "calibrate", index)``) and of the bootstrap.
        draws: resamples of the bootstrap.

    Raises:
        UsageError: percentile or token limit out of range, or no problems.
        ResetError: a prompt fills the context, logits were NaN (with the position), or no token came out.
    """
    reporter = reporter or Reporter()
    if not 0 < percentile < 100:
        raise UsageError(f"percentile must be between 0 and 100, not {percentile:g}")
    if max_new_tokens < 1:
        raise UsageError(f"--max-new-tokens must be at least 1, not {max_new_tokens}")
    if not problems.problems:
        raise UsageError(f"no calibration problems in {problems.dataset}; pass others with --problems")

    requests = [
        ask(
            engine, problem, f"calibration problem {problems.ids[i]}", request_id=str(i), index=i, repeat=0,
            limit=max_new_tokens, seed=seed,
        )
        for i, problem in enumerate(problems.problems)
    ]  # fmt: skip
    done: dict[str, Answer] = {}
    start = time.perf_counter()
    with reporter.phase("calibration answers (tokens)") as advance:

        def on_token(event: TokenEvent) -> None:
            advance(1)

        for completion in engine.generate(requests, settings, on_token=on_token, keep_entropies=True):
            # Judged as it arrives: a failure must not wait for hours of other answers.
            index = int(completion.request_id)
            done[completion.request_id] = _answer(requests[index], completion, problems.ids[index])
    if missing := [problems.ids[i] for i in range(len(requests)) if str(i) not in done]:
        raise ResetError(f"the engine gave no answer to calibration problem {missing[0]}")
    answers = [done[request.request_id] for request in requests]
    pooled = np.concatenate([answer.entropies for answer in answers])
    if not len(pooled):
        raise ResetError(f"{engine.info.model} generated no token on {len(answers)} problems; tau_0 needs some")
    warnings = _warnings(answers, requests)
    for line in warnings:
        reporter.warn(line)
    return CalibrationResult(
        tau_0=percentile_of(pooled, percentile),
        percentile=percentile,
        percentiles=entropy_percentiles(pooled),
        bootstrap=bootstrap_percentile([a.entropies for a in answers], percentile, seed=seed, draws=draws),
        histogram=histogram(pooled),
        answers=answers,
        dataset=problems.dataset,
        dataset_sha256=problems.sha256,
        settings=settings,
        max_new_tokens=max_new_tokens,
        seed=seed,
        info=engine.info,
        seconds=time.perf_counter() - start,
        warnings=warnings,
    )


def _answer(request: Request, completion: Completion, problem_id: str | int) -> Answer:
    if completion.finish_reason == "error":
        raise ResetError(f"calibration problem {problem_id}: {completion.error or 'NaN logits'}")
    entropies = completion.entropies
    if entropies is None or len(entropies) != completion.n_tokens:
        kept = "none" if entropies is None else len(entropies)
        raise ResetError(
            f"calibration problem {problem_id}: {completion.n_tokens} tokens but {kept} entropies; "
            "the engine cannot keep entropies, calibrate with --engine transformers"
        )
    entropies = np.asarray(entropies, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(entropies))
    if len(bad):
        raise ResetError(f"calibration problem {problem_id}: the entropy at position {bad[0]} is {entropies[bad[0]]}")
    return Answer(
        problem_id, request.prompt_ids, tuple(completion.token_ids), entropies, completion.finish_reason == "length"
    )


def _warnings(answers: list[Answer], requests: list[Request]) -> list[str]:
    lines = []
    if cut := [i for i, answer in enumerate(answers) if answer.cut]:
        limit = max(requests[i].max_new_tokens for i in cut)
        lines.append(
            f"{len(cut)} of {len(answers)} calibration answers were cut at {limit} tokens before they ended; "
            "tau_0 then rests on their beginnings only (raise --max-new-tokens)"
        )
    return lines
