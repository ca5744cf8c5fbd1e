"""One score an output: what was read as its answer, whether it is right, and if not, why.

Four verdicts, kept apart because they mean different things about a model: ``correct``; ``wrong`` (an answer, not
the right one); ``unparsed`` (it ended, but no answer can be read); ``truncated`` (the token limit came first). A
comparison that fails raises; it is never a zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from resetcli.base.errors import unknown_name
from resetcli.evaluation.scoring.equality import equal
from resetcli.evaluation.scoring.extraction import DEFAULT_MARKERS, ThoughtMarkers, readable
from resetcli.evaluation.scoring.grader import TIME_LIMIT
from resetcli.evaluation.scoring.letters import extract_letter
from resetcli.evaluation.scoring.maths import extract_maths
from resetcli.evaluation.scoring.notation import canonical

KINDS = ("math", "letters")
Why = Literal["correct", "wrong", "unparsed", "truncated"]


@dataclass(frozen=True)
class Score:
    """``answer``: in one spelling (see ``notation.canonical``), so that equal answers vote together; None if none."""

    answer: str | None
    score: int
    why: Why


def score_output(
    kind: str,
    text: str,
    target: str,
    finish_reason: str | None = "stop",
    *,
    alt_answers: Sequence[str] = (),
    markers: ThoughtMarkers = DEFAULT_MARKERS,
    opened_in_prompt: bool = False,
    letters: str = "ABCD",
    seconds: float = TIME_LIMIT,
) -> Score:
    """Score one output.

    Args:
        kind: "math" (expressions and numbers) or "letters" (multiple choice).
        text: the generated text, thought included, prompt excluded.
        target: the key; ``alt_answers`` are as good.
        finish_reason: "length" if the token limit cut the text off; "stop", or None where it is not known.
        markers: what opens and closes this model's thought; ``opened_in_prompt`` if the template opened it.
        letters: the choices of a "letters" task.
        seconds: limit for one symbolic comparison; time up is "wrong".

    Raises:
        UsageError: unknown kind.
        ResetError: the comparison failed.
    """
    if kind not in KINDS:
        raise unknown_name("kind of answer", kind, KINDS)
    part = readable(text, finish_reason, markers, opened_in_prompt=opened_in_prompt)
    if part.why_not is not None:
        return Score(None, 0, part.why_not)
    if kind == "letters":
        answer = extract_letter(part.text, letters, cut=part.cut)
        right = answer in (target, *alt_answers)
    else:
        answer = extract_maths(part.text, cut=part.cut)
        right = answer is not None and equal(target, answer, alt_answers, seconds)
        answer = canonical(answer) if answer is not None else None
    if not answer:
        return Score(None, 0, "truncated" if finish_reason == "length" else "unparsed")
    return Score(answer, int(right), "correct" if right else "wrong")
