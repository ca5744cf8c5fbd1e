r"""Mathematical answers: which expression an output ends on.

The last complete box is the answer; without one, the last "answer is ..." that names a value, a single bold number,
or an output that is a number and nothing else. A statement that takes the answer back ("the answer is unclear", "not
5", "3 or 5") leaves none; one that says something about the answer ("the answer is consistent with ...") is no
statement of it.
"""

from __future__ import annotations

import re

from resetcli.evaluation.scoring.extraction import boxes, supposed
from resetcli.evaluation.scoring.notation import NUMBER, TIMES, canonical, normalise, plain_number, value_side

_HEDGE = r"(?:therefore|thus|then|hence|simply|exactly|indeed|equal\s+to)"
_STATEMENT = re.compile(
    rf"(?<![A-Za-z0-9])answer(?:\s+to\s[^.:\n]{{1,60}}?)?(?:,\s*{_HEDGE},?)?[\s*_]*"
    rf"(?:\b(?:is|equals|(?:should|must|would|will)\s+(?:{_HEDGE}\s+)?be)\b|[:=\uff1a])[\s*_]*(?:[:=\uff1a][\s*_]*)?"
    rf"(?:,?\s*{_HEDGE}\b[\s,:*_]*)?(?:,\s*)?"
    r"|^[ \t#*_]*(?:the\s+|my\s+)?(?:final\s+)?answer[ \t*_]*\n[\s*_]*"
    r"|<answer>\s*"
    r"|^\#{4}[ \t]*(?=(?:\\?\$|[-+*])*[\d,.]+\$?\**[ \t]*$)",
    re.IGNORECASE | re.MULTILINE,
)
_DELIMITED = re.compile(
    r"(\$\$?)((?:[^$\n\\]|\\.){1,300})\1|\\\((.{1,300}?)\\\)|\\\[(.{1,300}?)\\\]|\$\$([^$]{1,300})\$\$", re.DOTALL
)
_STATED_NUMBER = re.compile(
    # Atomic: of a number that goes on, its first part is no answer.
    rf"[*_`]{{0,3}}\\?\$?\s*((?>{NUMBER}(?:\s*/\s*\d+)?(?:\s*\\?%|[ ](?:{'|'.join(TIMES)})\b)?))`?"
    # What makes it part of something larger: a power, a product, a ratio, a mixed number; a bound, a range, a list.
    r"(?![\w^\\(`]|[.,:]\d|[ ]\d|[ ](?:times|x|pi)\b|\s*(?:\\[A-Za-z]|\*(?!\*)"
    r"|[-+/=^\u00d7\u00b7\u00f7\u00b1\u00b2\u00b3\u00bc-\u00be\u03c0\u221a\u2264\u2265\u2260]|[<>]\s|\u2013\s?\d)"
    r"|[ ]or\s+(?:more|less)\b|[,*]*\s*(?:or|and|to)\s+\W{0,3}\d|,\s?-?[\d.]+[\s*_]*(?:,|\n|$|and\b|or\b))"
)
_SENTENCE_END = re.compile(r"[.;!?](?=\s|$|\*)|\n|</answer|,?\s(?:because|since|which|as|so|for)\b")
_TAKEN_BACK = re.compile(
    r"(?:still\s+|yet\s+)?(?:not\s+(?:known|clear|certain|determin|possible|\W{0,3}\d)|un(?:clear|known|certain|determin)"
    rf"|impossible|ambiguous|either\b|neither\b|none\b|\W{{0,3}}{NUMBER}\W{{0,3}}(?:or|and)\s+\W{{0,3}}\d)",
    re.IGNORECASE,
)
_TWO = re.compile(rf"(?:{_DELIMITED.pattern}),?\s+or\s+(?:\$|\\[(\[])", re.DOTALL)
_BOLD_NUMBER = re.compile(
    # No space inside the asterisks: "**First** 3 **Second**" has no bold number.
    r"\*\*(?:(?:\\\(|\$)\s{0,3})?(?P<name>[A-Za-z](?:[ ]{0,2}[-+]?[ ]{0,2}[A-Za-z]){0,4}[ ]{0,3}=[ ]{0,3})?"
    rf"(?P<value>{NUMBER}(?:/\d+)?)(?:\s{{0,3}}(?:\\\)|\$))?(?P<mark>[.):]?)\*\*"
)


def extract_maths(text: str, *, cut: bool = False) -> str | None:
    """The expression on which ``text`` (the output after its thought) ends, as written, or None.

    ``cut``: the text was cut off, so that only a complete box is an answer.
    """
    if found := boxes(text, cut=cut):
        return found[-1].text
    if cut:
        return None
    for statement in reversed(list(_STATEMENT.finditer(text))):
        if supposed(text, statement.start()):
            continue
        rest = text[statement.end() : statement.end() + 400]
        if _TAKEN_BACK.match(rest) or _TWO.match(rest):
            return None
        if (value := _stated_value(rest)) is not None:
            return value
    if (lone := _lone_bold_number(text)) is not None:
        return lone
    # The whole output may be the answer and nothing else: "1,024", "$x+1$", "m+n = 204".
    whole = text.strip()
    plain = normalise(whole)
    alone = plain_number(plain) is not None or _DELIMITED.fullmatch(whole)
    named = (side := value_side(plain)) is not None and plain_number(side) is not None
    return whole if (alone or named) and not _is_prose(whole) else None


def _stated_value(rest: str) -> str | None:
    """The value at the beginning of what follows "answer is", or None if it is prose."""
    inside = _DELIMITED.match(rest)
    if inside:
        content = inside[2] or inside[3] or inside[4] or inside[5]
        if not _is_prose(content):  # "$18. Then $5" is money, not a formula
            return content.strip()
    if number := _STATED_NUMBER.match(rest):
        return number[1].strip()
    end = _SENTENCE_END.search(rest)
    value = rest[: end.start() if end else 200].strip(" *_`").rstrip(" -\u2013\u2014")
    return value if re.search(r"\w", value) and not _is_prose(value) else None


def _is_prose(text: str) -> bool:
    plain = re.sub(r"\\(?:text(?:bf|rm)?|math(?:rm|bf)|mbox|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+", " ", text)
    return bool(re.search(r"[A-Za-z]{3,}|\.\s|\bno\b|\bor\b", plain))


def _lone_bold_number(text: str) -> str | None:
    """The only number that stands alone in bold, else the only one with a name ("**m+n = 204**"); list numbers ("**1.**
    First") do not count."""
    found: dict[bool, dict[str, str]] = {False: {}, True: {}}
    for match in _BOLD_NUMBER.finditer(text):
        before = text[max(0, match.start() - 200) : match.start()].rpartition("\n")[2]
        begins_line = not before.strip(" #>-")
        goes_on = bool(text[match.end() : match.end() + 200].partition("\n")[0].strip(" ."))
        if not (match["mark"] and begins_line and goes_on):
            found[match["name"] is not None][canonical(match["value"])] = match["value"]
    values = found[False] or found[True]
    return next(iter(values.values())) if len(values) == 1 else None
