r"""Multiple choice: the letter of an output's final statement.

A statement is a box with a letter in it, "answer is ..." or the like, or a last line that is nothing but a letter.
The statement that stands last decides, and if it names no letter, none is read: "Answer seems likely" is not a
choice, "not B" is not B, "B or C" is not one. Outside boxes and brackets only capitals count, since "a" is a word.
"""

from __future__ import annotations

import functools
import re

from resetcli.evaluation.scoring.extraction import boxes
from resetcli.evaluation.scoring.maths import normalise

_HEDGE = (
    r"(?:(?:therefore|thus|then|hence|clearly|definitely|most\s+likely|likely|probably|indeed|simply|still)[\s,:*_]+)*"
)
_VERB = r"(?:is|was|(?:seems|appears)(?:\s+to\s+be)?|(?:would|should|must|will|has\s+to)\s+be)\b"
_HEAD = re.compile(
    rf"\b(?:answer|(?:correct|right|best)\s+(?:option|choice|letter|one)|(?:option|choice)\s+that\s+is\s+correct)s?\b"
    rf"(?:\s+to\s[^.:\n]{{1,60}}?)?[\s*_]*(?:(?:option|choice|letter)[\s*_]+)?"
    rf"(?:{_VERB}[\s*_]*(?:[:=][\s*_]*)?|(?:[:=]|-+>|\\to\b|→)[\s*_]*|(?=[(\[{{]|\*\*))"
    rf"{_HEDGE}",
    re.IGNORECASE,
)
_OPENERS = re.compile(
    r"(?:[\s*_$(\[{`\"'“\u2018]|\\[(\[]|\\(?:text|textbf|textrm|mathrm|mathbf|boldsymbol|fbox|boxed)\s*\{"
    r"|\b(?:option|choice|letter)\b)*",
    re.IGNORECASE,
)
_BEFORE_BOX = re.compile(r"[\s*_$]*(?:\\[(\[]\s*)?")
_CONNECTIVE = r"because|since|as|and|is|with|due|for|which|by|though|but|while|given|based|on|from|here"


def extract_letter(text: str, letters: str = "ABCD", *, boxed_only: bool = False) -> str | None:
    """The letter on which ``text`` (the output after its thought) settles, or None. ``letters``: the choices offered.

    ``boxed_only``: the text was cut off, so that only a complete box counts.
    """
    found = [(box.start, letter) for box in boxes(text) if (letter := _boxed_letter(box.text, letters)) is not None]
    if boxed_only:
        return found[-1][1] if found else None
    statements: list[tuple[int, str | None]] = [*found]
    spoken = {start for start, _ in found}
    for head in _HEAD.finditer(text):
        # Of "answer is \boxed{C}" the box has spoken already.
        opened = _BEFORE_BOX.match(text, head.end())
        if opened is None or opened.end() not in spoken:
            statements.append((head.start(), _stated_letter(text[head.end() : head.end() + 200], letters)))
    statements += [(match.start(), match[1]) for match in _reversed(letters).finditer(text)]
    if (last := _last_line(text, letters)) is not None:
        statements.append(last)
    return max(statements, key=lambda item: item[0])[1] if statements else None


@functools.cache
def _reversed(letters: str) -> re.Pattern[str]:
    """ "C is the correct answer", "option C is correct." at the end of a clause, unless it is a supposition."""
    return re.compile(
        r"(?<!if )(?<!whether )(?<![A-Za-z0-9\\])"
        rf"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s{{1,3}})?[(*]{{0,3}}([{letters}])"
        r"[)*]{0,3}\s{1,3}is\s{1,3}"
        r"(?:the\s{1,3})?(?:correct|right|best)(?:\s{1,3}(?:answer|option|choice))?(?=[\s*]{0,4}(?:[.!,;]|$))"
    )


def _boxed_letter(content: str, letters: str) -> str | None:
    content = normalise(content)
    match = re.fullmatch(
        r"(?:option|choice|answer)?[\s:]*\(?\s*(?:\\(?:text|textbf|mathrm|mathbf)\s*\{\s*)?"
        rf"\(?([{letters}])\)?\s*\}}?\s*\)?"
        r"(?:\s*[.):}].*|\s*[,\\].*)?",
        content,
        re.IGNORECASE | re.DOTALL,
    )
    return match[1].upper() if match and not _another(content[match.end(1) :], letters) else None


def _stated_letter(rest: str, letters: str) -> str | None:
    """The letter at the beginning of what follows "answer is"."""
    opened = _OPENERS.match(rest)
    start = opened.end() if opened else 0
    match = re.compile(rf"([{letters}{letters.lower()}])(?![A-Za-z0-9'\u2019_^=+*/](?!\*))").match(rest, start)
    if match is None:
        return None
    letter, tail = match[1], rest[match.end() :]
    bracketed = bool(re.search(r"[(\[{]\s*$", rest[:start])) and bool(re.match(r"\s*[)\]}]", tail))
    if letter.islower() and not bracketed:
        return None
    # "A" as an article: "Answer: A closer look shows ..."
    if letter == "A" and re.match(rf"\s+(?!(?:{_CONNECTIVE})\b)[a-z]", tail):
        return None
    return None if _another(tail, letters) else letter.upper()


def _another(tail: str, letters: str) -> bool:
    """Whether a second letter follows on equal terms: "or C", "/C", ", C"."""
    return bool(
        re.match(
            rf"[\s)\]}}*.]*(?:(?:,\s*)?\b(?:or|and)\b|/|&|,(?=\s*\(?[{letters}]\)?[\s.*$}}]*(?:$|\n|,|and\b|or\b)))"
            rf"\s*(?:option|choice)?[\s*(\[{{]*[{letters}](?![A-Za-z0-9'\u2019])",
            tail,
        )
    )


def _last_line(text: str, letters: str) -> tuple[int, str] | None:
    """A last line that is a letter and its decoration, or the only line of the form "C) ..." as the last one."""
    stripped = text.rstrip()
    start = stripped.rfind("\n") + 1
    line = stripped[start:]
    only = re.fullmatch(
        rf"(?:[\s*_$(\[{{`>#-]|\\[(\[]|\\(?:text|textbf|mathrm|mathbf)\s*\{{|\b[Oo]ption\b|\b[Cc]hoice\b)*([{letters}])"
        r"(?:[\s*_$)\]}`.!:]|\\[)\]])*",
        line,
    )
    if only:
        return start, only[1]
    item = re.compile(rf"^[ \t*_>-]*\(?([{letters}])[).:]", re.MULTILINE)
    items = item.findall(stripped)
    if len(items) == 1 and (match := item.match(line)):
        return start, match[1]
    return None
