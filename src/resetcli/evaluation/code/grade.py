"""A score for an output whose answer is a program: it is right if it passes every test of its problem."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from resetcli.data.livecodebench import Problem, read_problem
from resetcli.evaluation.code.compare import same_output, same_value
from resetcli.evaluation.code.extraction import extract_code
from resetcli.evaluation.code.sandbox import DEFAULT_LIMITS, Limits, Sandbox, SandboxError
from resetcli.evaluation.scoring.extraction import DEFAULT_MARKERS, ThoughtMarkers, readable
from resetcli.evaluation.scoring.score import Score

_last = threading.local()


def score_code(
    doc: Mapping[str, Any],
    text: str,
    finish_reason: str | None = "stop",
    *,
    markers: ThoughtMarkers = DEFAULT_MARKERS,
    opened_in_prompt: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Score:
    """Score one output of a LiveCodeBench problem. Runs the program in it; callers see to it that this is allowed.

    Args:
        doc: a row of `data.livecodebench`; its "place" tells where the tests are.
        text, finish_reason, markers, opened_in_prompt: as `scoring.score.score_output`.

    Returns:
        ``answer`` says how it went: "passed all 5 tests", "test 2 of 5: wrong output" (or the exception, or the limit),
        null without a program. Programs that fail alike vote alike.

    Raises:
        ResetError: the tests cannot be read or the sandbox does not work.
    """
    part = readable(text, finish_reason, markers, opened_in_prompt=opened_in_prompt)
    if part.why_not is not None:
        return Score(None, 0, part.why_not)
    code = extract_code(part.text, closed_only=part.cut)
    if code is None:
        return Score(None, 0, "truncated" if finish_reason == "length" else "unparsed")
    answer, passed = judge(code, _problem(doc["place"]), limits)
    return Score(answer, int(passed), "correct" if passed else "wrong")


def judge(code: str, problem: Problem, limits: Limits = DEFAULT_LIMITS) -> tuple[str, bool]:
    """How ``code`` does on the tests, in order, up to the first it fails: (in words, whether it passed all).

    Raises:
        SandboxError: the sandbox does not work, or ended twice on the same test.
    """
    count, done = len(problem.cases), 0
    for attempt in range(2):
        try:
            with Sandbox(code, problem.function, limits) as box:
                for case in problem.cases[done:]:
                    found = box.run(case.input)
                    fault = "" if found.status == "ok" else found.detail
                    if not fault and not _same(problem, case.output, found.output):
                        fault = "wrong output"
                    if fault:
                        return f"test {done + 1} of {count}: {fault}", False
                    done += 1
            return f"passed all {count} tests" if count > 1 else "passed the test", True
        except SandboxError:
            if attempt:
                raise
    raise AssertionError("not reached")


def _same(problem: Problem, expected: str, found: bytes) -> bool:
    if problem.function is not None:
        return same_value(expected, found)
    return same_output(expected.encode(), found)


def _problem(place: Mapping[str, Any]) -> Problem:
    """The tests, the last ones kept: repeats of a problem come close together."""
    key = (place["path"], place["offset"])
    if getattr(_last, "key", None) != key:
        _last.problem, _last.key = read_problem(dict(place)), key
    return _last.problem
