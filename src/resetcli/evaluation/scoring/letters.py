r"""Multiple choice: the letter of an output's final statement.

A statement is a box with a letter in it, "answer is ..." or the like, or a last line that is nothing but a letter.
The one that stands last decides. A statement that names two letters, or says that the answer is unclear or unknown,
leaves none; one that denies a letter ("the answer is not B") only takes that letter back; one that names no letter
("the answer seems likely", "the answer is consistent with ...") is no choice and changes none. Outside boxes and
brackets only capitals count, since "a" is a word, unless the letter is all that follows a colon.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Literal

from resetcli.evaluation.scoring.extraction import boxes, supposed
from resetcli.evaluation.scoring.notation import normalise

_HEDGE = (
    r"(?:(?:therefore|thus|then|hence|clearly|definitely|most\s+likely|likely|probably|indeed|simply|still|either)"
    r"[\s,:*_]+)*"
)
_VERB = (
    r"(?:is(?:\s+(?:most\s+)?likely\s+to\s+be)?|was|(?:seems|appears)(?:\s+to\s+be)?|(?:would|should|must|will|has\s+to)"
    r"\s+(?:(?:therefore|thus|then|hence|clearly|definitely|most\s+likely|likely|probably|indeed|still)\s+)?be)\b"
)
_CHOICE = r"(?:option|choice|letter|one|statement|alternative|selection|pick)"
_HEAD = re.compile(
    rf"(?<![A-Za-z0-9])(?:answer(?:\s+choice)?|(?:correct|right|best|final|chosen|selected|my)\s+{_CHOICE}"
    r"|(?:option|choice|statement|alternative)\s+that\s+is\s+correct|the\s+(?:option|choice|letter)(?=\s+(?:is|must)\b))s?\b"
    rf"(?:\s+to\s[^.:\n]{{1,60}}?)?(?:,\s*(?:therefore|thus|then|hence),?)?[\s*_]*(?:(?:option|choice|letter)[\s*_]+)?"
    rf"(?:{_VERB}[\s*_]*(?:[:=\uff1a][\s*_]*)?|(?:[:=\uff1a]|-+>|\\to\b|→)[\s*_]*|(?=[(\[{{]|\*\*)|\n[\s*_]*)"
    rf"(?:,\s*)?{_HEDGE}"
    r"|\b(?:I|we)(?:\s+(?:would|will|must|should|shall|am\s+going\s+to)|['\u2019](?:d|ll))?"
    r"\s+(?:choose|pick|select|go\s+with)\s+"
    r"|\b(?:so|hence|thus|therefore),?\s+(?:it|this)\s+(?:is|must\s+be)\s+"
    r"|^[ \t*_#>-]*(?:option|choice)[\s*_]*[:=\uff1a][\s*_]*"
    r"|<answer>\s*",
    re.IGNORECASE | re.MULTILINE,
)
_OPENERS = re.compile(
    r"(?:[\s*_$(\[{`\"'“\u2018]|\\[(\[]|\\(?:text|textbf|textrm|mathrm|mathbf|boldsymbol|fbox|boxed)\s*\{"
    r"|\b(?:option|choice|letter)\b)*",
    re.IGNORECASE,
)
_BEFORE_BOX = re.compile(r"[\s*_$]*(?:\\[(\[]\s*)?")
_CONNECTIVE = (
    r"rather|instead|not|because|since|as|and|is|with|due|for|which|by|though|but|while|given|based|on|from|here"
)
_TAKEN_BACK = re.compile(
    r"(?:still\s+|yet\s+)?(?:not\s+(?:known|clear|certain|determin|possible|listed|given|among)"
    r"|un(?:clear|known|certain|determin)|impossible|ambiguous|none\b|neither\b|(?:all|both)\s+of\b)",
    re.IGNORECASE,
)
_NOT = re.compile(r"(?:definitely\s+|certainly\s+|clearly\s+)?(?:not|n['\u2019]t)\b\s*", re.IGNORECASE)
_DISMISSED = re.compile(
    r"[\s*_)\]}$`]*(?:is|are|was)\s+(?:clearly\s+|also\s+|therefore\s+)?(?:wrong|incorrect|false|invalid|ruled\s+out|eliminated)\b",
    re.IGNORECASE,
)
_LEAD = (
    r"(?:therefore|thus|so|hence|then|finally|(?:in\s+)?conclusion|=>|∴|→|it\s+is|it['\u2019]s|it\s+must\s+be"
    r"|this\s+is)"
)
_ENDS_LETTER = (
    # C_6, C-H, A's, A*B, C\u2086, C\u207a
    r"(?![A-Za-z0-9^=+\u00b2\u00b3\u00b9\u2070-\u208e]|['\u2019][A-Za-z]|_(?=[A-Za-z0-9{])|\*(?=[A-Za-z0-9(\\])|-[A-Za-z0-9])"
)
_ARTICLE = re.compile(rf"\s+(?:(?!(?:{_CONNECTIVE})\b)[a-z]|[\d.]\S*\s+[a-z]{{3}})")
"""What follows an A that is a word: "A closer look shows", "A 5% increase"."""
_NAMES_ANOTHER = re.compile(
    r"\b(?:compound|molecule|structure|product|reactant|reagent|reaction|intermediate|isomer|substance|species|element"
    r"|sample|mixture|vitamin|protein|gene|particle|state|system|group|set|type|class|case|point|curve|figure)\s+$",
    re.IGNORECASE,
)
"""Before a letter that is part of a name: "compound C" may be any choice."""


@dataclass(frozen=True)
class _Statement:
    """``letter`` is stated or denied; "none" takes back all that was said before."""

    start: int
    says: Literal["letter", "denied", "none"]
    letter: str = ""


def extract_letter(text: str, letters: str = "ABCD", *, cut: bool = False) -> str | None:
    """The letter on which ``text`` (the output after its thought) settles, or None. ``letters``: the choices offered.

    ``cut``: the text was cut off, so that only a complete box counts.
    """
    found = [s for box in boxes(text, cut=cut) if (s := _boxed(box.start, box.text, letters)) is not None]
    if not cut:
        spoken = {statement.start for statement in found}
        for head in _HEAD.finditer(text):
            if supposed(text, head.start()):
                continue
            # Of "answer is \boxed{C}" the box has spoken already.
            opened = _BEFORE_BOX.match(text, head.end())
            if opened is None or opened.end() not in spoken:
                rest, colon = (
                    text[head.end() : head.end() + 200],
                    head.group().rstrip(" *_\n")[-1:] in (":", "=", "\uff1a"),
                )
                if (statement := _stated(head.start(), rest, letters, colon)) is not None:
                    found.append(statement)
        for said in _reversed(letters).finditer(text):
            named = _NAMES_ANOTHER.search(text[max(0, said.start() - 20) : said.start()])
            if not named and not supposed(text, said.start()):
                found.append(_Statement(said.start(), "letter", said[1]))
        if (last := _last_line(text, letters)) is not None:
            found.append(last)
    denied: set[str] = set()
    for statement in sorted(found, key=lambda s: s.start, reverse=True):
        if statement.says == "denied":
            denied.add(statement.letter)
        elif statement.says == "none" or statement.letter in denied:
            return None
        else:
            return statement.letter
    return None


@functools.cache
def _reversed(letters: str) -> re.Pattern[str]:
    """ "C is the correct answer", "option C is correct." at the end of a clause; not "A or C is correct"."""
    return re.compile(
        r"(?<!\bor )(?<!\bnor )(?<![A-Za-z0-9\\])"
        rf"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s{{1,3}})?[(*]{{0,3}}([{letters}])"
        r"[)*]{0,3}\s{1,3}(?:is|must\s{1,3}be)\s{1,3}"
        r"(?:(?:the\s{1,3})?(?:correct|right|best)(?:\s{1,3}(?:answer|option|choice))?|the\s{1,3}answer)(?=[\s*]{0,4}(?:[.!,;]|$))"
    )


def _boxed(start: int, content: str, letters: str) -> _Statement | None:
    """What a box states: a letter, alone or before the words of its choice; several letters; or (None) no letter."""
    content = normalise(content)
    listed = re.fullmatch(
        rf"\(?[{letters}]\)?(?:(?:\s*(?:,|/|&|\\&|\\text\s*\{{\s*,?\s*(?:and|or)\s*\}}|\band\b|\bor\b)\s*)+\(?[{letters}]\)?)+",
        content,
        re.IGNORECASE,
    )
    if listed:
        return _Statement(start, "none")
    inner = r"\\(?:text|textbf|textrm|mathrm|mathbf)\s*\{\s*"
    named = rf"(?:{inner})?(?:(?:final|correct)\s+)?(?:option|choice|answer|letter)(?:\s+is)?[\s:~]*\}}?"
    match = re.fullmatch(
        rf"(?:{named})?[\s:~]*[(\[]?\s*(?:{inner})?[(\[]?([{letters}])[)\]]?\s*\}}?\s*[)\]]?"
        r"(?P<tail>(?:\s*[.):}(].*|\s*,.*|\s+-.*|\s+\d.*|\s*\\(?:quad|qquad|text|mathrm|textbf|\().*)?)",
        content,
        re.IGNORECASE | re.DOTALL,
    )
    if match is None or (match[1] in "Aa" and _ARTICLE.match(match["tail"])):
        return None
    if _another(match["tail"], letters, re.IGNORECASE):
        return _Statement(start, "none")
    return _Statement(start, "letter", match[1].upper())


def _stated(start: int, rest: str, letters: str, colon: bool) -> _Statement | None:
    """What follows "answer is" states; None if it is about the answer and not the answer."""
    if _TAKEN_BACK.match(rest):
        return _Statement(start, "none")
    refused = _NOT.match(rest)
    begin = refused.end() if refused else 0
    opened = _OPENERS.match(rest, begin)
    at = opened.end() if opened else begin
    match = re.compile(rf"([{letters}{letters.lower()}]){_ENDS_LETTER}").match(rest, at)
    if match is None:
        return None
    letter, tail = match[1], rest[match.end() :]
    bracketed = bool(re.search(r"[(\[{]\s*$", rest[:at])) and bool(re.match(r"\s*[)\]}]", tail))
    ends = bool(re.match(r"[\s*_)\]}$`.!]*(?:\n|$)|</answer", tail))
    if letter.islower() and not bracketed and not (colon and ends):
        return None
    if letter == "A" and _ARTICLE.match(tail):
        return None
    # "Answer (A) is wrong" speaks of another one.
    if _DISMISSED.match(tail):
        return None
    if refused:
        return _Statement(start, "denied", letter.upper())
    if _another(tail, letters):
        return _Statement(start, "none")
    # "Is the answer B?" asks.
    return None if re.match(r"[\s)\]}*_$]*\?", tail) else _Statement(start, "letter", letter.upper())


def _another(tail: str, letters: str, flags: int = 0) -> bool:
    """Whether a second letter follows on equal terms: "or C", "/C", ", C"; not ", and C is wrong"."""
    return bool(
        re.match(
            rf"[\s)\]}}*.]*(?:(?:,\s*|\()?\b(?:or|and)\b|/|&|,(?=\s*\(?[{letters}]\)?[\s.*$}}]*(?:$|\n|,|and\b|or\b)))"
            rf"\s*(?:possibly|maybe|perhaps|even)?\s*(?:option|choice)?[\s*(\[{{]*[{letters}](?![A-Za-z0-9'\u2019]|{_DISMISSED.pattern})",
            tail,
            flags,
        )
    )


def _last_line(text: str, letters: str) -> _Statement | None:
    """A last line that is a letter and its decoration, or the only line of the form "C) ..." as the last one."""
    stripped = text.rstrip()
    start = stripped.rfind("\n") + 1
    line = stripped[start:]
    # Possessive: what one part took the next could take as well, and a rule of dashes would cost quadratic time.
    only = re.fullmatch(
        rf"[ \t*_#>-]*+(?i:{_LEAD}[\s,:]++)?"
        rf"(?:[\s*_$(\[{{`>#-]|\\[(\[]|\\(?:text|textbf|mathrm|mathbf)\s*\{{|\b[Oo]ption\b|\b[Cc]hoice\b)*+([{letters}])"
        r"(?:[\s*_$)\]}`.!:]|\\[)\]])*",
        line,
    )
    if only:
        return _Statement(start, "letter", only[1])
    item = re.compile(rf"^[ \t*_>-]*\(?([{letters}])[).:]", re.MULTILINE)
    items = item.findall(stripped)
    if len(items) == 1 and (match := item.match(line)):
        return _Statement(start, "letter", match[1])
    return None
