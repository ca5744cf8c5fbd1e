"""Whether an answer equals its key, from cheap and certain to dear.

Equal after notation is removed, equal as exact numbers, then math-verify. Two integers never reach math-verify. Time
or memory up means not equal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from resetcli.evaluation.scoring import grader
from resetcli.evaluation.scoring.grader import TIME_LIMIT
from resetcli.evaluation.scoring.notation import LONGEST, NUMBER, bare, in_full, normalise, number, value_side

_BOUND = r"\\(?:[gl]eq?(?:slant)?|[gl]t|neq?|neg|lnot|not)(?![A-Za-z])|[<>\u2264\u2265\u2260]"
_BASE = r"^[0-9A-Z]+\s*_\s*\{?\s*(\d+)\s*\}?$"
"""A number in a base of its own: "2516_8"."""
_WORDS_BETWEEN = re.compile(
    r"\d\s*\\(?:text|textrm|mathrm|mbox)\s*\{(?!\W*(?:and|or|mod|pi|ln|log|sin|cos|tan)?\W*\})(?=\s|[^{}]*[A-Za-z]{2})"
    r"[^{}]*\}[^\d^]*\d"
)
_IN_PIECES = re.compile(r"\d+(?: \d+)+|.*\d(?:\.\.+|\{,\})\d.*|.*\d\s*(?:[-+*/=^]|\\times|\\cdot)", re.DOTALL)
"""Of these math-verify reads a part: "2 0 4" as 204, "5..6" and "5+" as 5."""


def equal(target: str, answer: str, alt_answers: Sequence[str] = (), seconds: float = TIME_LIMIT) -> bool:
    """Whether ``answer`` equals ``target`` or one of ``alt_answers``.

    Raises:
        ResetError: the comparison itself failed (not: ran out of time); that is no wrong answer.
    """
    return any(_equal(normalise(key), normalise(answer), seconds) for key in (target, *alt_answers))


def _equal(gold: str, answer: str, seconds: float) -> bool:
    if not answer or _same(gold, answer):
        return bool(answer)
    if "=" not in gold and (side := value_side(answer)) is not None:
        answer = side
        if _same(gold, answer):
            return True
    if bool(re.match(_BOUND, gold)) != bool(re.match(_BOUND, answer)):  # math-verify would take the 5 out of "\\geq 5"
        return False
    bases = [base[1] if (base := re.search(_BASE, side)) else None for side in (gold, answer)]
    if bases[1] is not None and bases[1] != (bases[0] or "10"):  # math-verify drops them
        return False
    gold_value, value = number(gold), number(answer)
    if gold_value is None or value is None:
        percent = r"\s*\\?%$"
        if bool(re.search(percent, gold)) != bool(re.search(percent, answer)):
            # "50%" for a key of 50; math-verify still gets 0.5 against 50%.
            first, second = number(re.sub(percent, "", gold)), number(re.sub(percent, "", answer))
            if first is not None and first == second:
                return True
    elif gold_value == value or (gold_value is not None and gold_value == in_full(answer)):
        return True
    elif gold_value.denominator == value.denominator == 1:
        return False
    if len(answer) > LONGEST or _IN_PIECES.fullmatch(answer) or _measures(gold) != _measures(answer):
        return False
    return grader.GRADER.equal(gold, answer, seconds)


def _measures(text: str) -> list[str]:
    r"""The numbers of "5 \text{ hours } 30 \text{ minutes}", where math-verify reads the first; none of other texts."""
    return re.findall(NUMBER, text) if _WORDS_BETWEEN.search(text) else []


def _same(gold: str, answer: str) -> bool:
    if gold == answer or bare(gold) == bare(answer):
        return True
    # A key in words: capitals do not matter.
    return bool(re.fullmatch(r"[A-Za-z]{2,}(?:[ -][A-Za-z]+)*", gold)) and gold.casefold() == answer.casefold()
