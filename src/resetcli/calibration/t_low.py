"""T_low by trial: the candidate with the best avg@k on problems that tau_0 did not use.

The engine generates under the very policy that will decode. Who judges an answer is passed in, because
scoring lives above calibration. All candidates get the same sample seeds, so they differ by T_low alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import Reporter
from resetcli.calibration.asking import ask
from resetcli.engines.protocol import Engine
from resetcli.policy.settings import PolicySettings

if TYPE_CHECKING:
    from resetcli.data.problems import ProblemSet

Scorer = Callable[[str, str, str], float]
"""(text, target, finish_reason) -> score in [0, 1]."""


@dataclass(frozen=True)
class TLowChoice:
    """The chosen T_low of a task and the avg@k of each candidate, on ``problems`` problems with ``repeats`` samples."""

    task: str
    t_low: float
    scores: dict[float, float]
    problems: int
    repeats: int

    def to_json(self) -> dict[str, Any]:
        """{"task", "t_low", "avg@k": {candidate: score}, "problems", "repeats"}."""
        scores = {f"{t:g}": score for t, score in self.scores.items()}
        return {
            "task": self.task, "t_low": self.t_low, "avg@k": scores, "problems": self.problems, "repeats": self.repeats,
        }  # fmt: skip


def parse_t_lows(text: str) -> list[float]:
    """``--select-t-low 0.1,0.2``: ascending distinct temperatures; spaces and a trailing comma allowed.

    Raises:
        UsageError: an item is not a number in [0, 2], or there is none.
    """
    found = set()
    for item in filter(None, (part.strip() for part in text.split(","))):
        try:
            value = float(item)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 2:
            raise UsageError(f"--select-t-low: '{item}' is not a temperature from 0 to 2")
        found.add(value)
    if not found:
        raise UsageError("--select-t-low needs at least one temperature, such as 0.1,0.2,0.3,0.4")
    return sorted(found)


def held_out(
    load: Callable[[int], ProblemSet], used_ids: Sequence[str | int], count: int
) -> tuple[list[str], list[str]]:
    """``count`` problems with answers that tau_0 did not use, in the data set's own order: (problems, answers).

    Args:
        load: the first n problems of the data set, tau_0's among them
            (``lambda n: load_calibration_problems(source, n, seed)``); asked for more while answers are missing.
        used_ids: ids of tau_0's problems.

    Raises:
        ResetError: the data set has fewer.
    """
    used = {str(i) for i in used_ids}
    wanted = len(used) + count
    while True:
        try:
            pool = load(wanted)
        except UsageError as exc:
            raise ResetError(
                f"--select-t-low needs {count} held-out problems with answers beside the {len(used)} of tau_0, and "
                f"there are not so many ({exc}); pass a larger file with --problems, or fewer with --select-problems"
            ) from exc
        chosen = [
            (problem, answer)
            for problem, identity, answer in zip(pool.problems, pool.ids, pool.answers, strict=True)
            if answer and str(identity) not in used
        ]
        if len(chosen) >= count:
            return [problem for problem, _ in chosen[:count]], [answer for _, answer in chosen[:count]]
        wanted += count - len(chosen)


def select_t_low(
    engine: Engine,
    problems: Sequence[str],
    answers: Sequence[str],
    candidates: Sequence[float],
    *,
    task: str,
    settings: PolicySettings,
    score: Scorer,
    repeats: int = 4,
    max_new_tokens: int = 32768,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> TLowChoice:
    """The candidate with the highest avg@k on ``problems``, ties to the lowest.

    Args:
        problems, answers: held out from tau_0's (``held_out``), [n] each.
        candidates: values of T_low to try.
        settings: a policy that uses T_low, with the calibrated tau_0; its t_low is replaced.
        score: judges an answer.
        repeats: k, samples a problem; sample r of problem i has the key ``sample_seed(seed, "calibrate", i, r)``.
        max_new_tokens: limit of an answer; a smaller room in the context wins.

    Raises:
        UsageError: no candidates, or one that ``settings`` refuses (above t_high).
        ResetError: NaN logits, or a prompt that fills the context.
    """
    reporter = reporter or Reporter()
    if not candidates or not problems or repeats < 1:
        raise UsageError("selecting T_low needs at least one candidate, one problem and one repeat")
    if len(problems) != len(answers):
        raise UsageError(f"{len(problems)} problems but {len(answers)} answers")
    trials = sorted(set(candidates))
    for t_low in trials:
        replace(settings, t_low=t_low).validate()
    requests = [
        ask(
            engine, problem, f"held-out problem {i}", request_id=f"{i}/{r}", index=i, repeat=r, limit=max_new_tokens,
            seed=seed,
        )
        for i, problem in enumerate(problems)
        for r in range(repeats)
    ]  # fmt: skip
    scores: dict[float, float] = {}
    with reporter.phase(f"T_low for {task} (answers)", total=len(trials) * len(requests)) as advance:
        for t_low in trials:
            # Integer or exact scores add up the same in any finishing order; others are summed by request.
            got: dict[str, float] = {}
            for done in engine.generate(requests, replace(settings, t_low=t_low)):
                index = int(done.request_id.split("/")[0])
                if done.finish_reason == "error":
                    raise ResetError(f"T_low {t_low:g}, problem {index}: {done.error or 'NaN logits'}")
                got[done.request_id] = float(score(done.text, answers[index], done.finish_reason))
                advance(1)
            if len(got) != len(requests):
                raise ResetError(f"T_low {t_low:g}: {len(requests)} answers asked, {len(got)} came")
            scores[t_low] = sum(got[request.request_id] for request in requests) / len(requests)
    if len(trials) > 1 and len(set(scores.values())) == 1:
        reporter.warn(
            f"every T_low scores {scores[trials[0]]:g} on {len(problems)} problems, so the lowest is taken; longer "
            "answers (--max-new-tokens) or more problems (--select-problems) may tell them apart"
        )
    best = max(trials, key=lambda t: (scores[t], -t))
    return TLowChoice(task, best, scores, len(problems), repeats)
