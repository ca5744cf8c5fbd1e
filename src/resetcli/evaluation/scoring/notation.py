r"""Mathematical notation without what does not change a value: one spelling for answers that are plainly the same.

Everything here is exact and cheap; what needs algebra is left to math-verify (``equality``). What is removed is what
people and models put around a value: ``$``, sizes, fonts and colours, ``\text{}`` around it all, spacing, degrees,
units after a number, a modulus, the name that an equation gives to the value.
"""

from __future__ import annotations

import re
from fractions import Fraction
from unicodedata import normalize

from resetcli.evaluation.scoring.extraction import balanced

LONGEST = 2000
"""Characters beyond which an answer is not parsed, only compared as text."""

NUMBER = r"[-+\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"

_WRAPPER = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt)?|math(?:rm|bf|it|sf)|boldsymbol|bm|pmb|mbox|emph|underline|fbox|boxed)\s*(?=\{)"
)
_STYLE = re.compile(
    r"\\(?:display|text)style(?![A-Za-z])|\\(?:tiny|small|normalsize|large|Large|LARGE|huge|Huge|bf|bfseries|it|rm)(?![A-Za-z])"
    r"|\\(?:text)?color\s*\{[^{}]*\}|\\!"
)
_DEGREES = re.compile(r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?|\\degrees?(?![A-Za-z])|°")
_UNIT_MACRO = re.compile(r"(?:\\(?:text|textrm|mathrm|mbox)\s*\{[^{}]*\}(?:\^\{?\d\}?)?\s*)+$")
_UNIT_WORDS = re.compile(
    r"\s+(?!(?:pi|or|and|to|mod|sqrt|ln|log|sin|cos|tan|infty|inf)\b)"
    r"(?:[A-Za-z]{3,}|cm|mm|km|ft|in|yd|mi|kg|mg|lb|oz|ml|mL|hr|am|pm|of|is)(?:\^?\d|\^\{\d\})?(?:\s+[A-Za-z]{2,})*$"
)
_MODULUS = re.compile(
    r"\s*(?:\\pmod\s*(?:\{\s*\d+\s*\}|\d+)|\(?\s*(?:\\[bm]?mod|mod|\\(?:text|mathrm)\s*\{\s*\(?\s*mod\s*\}|\\(?:bmod|mod))"
    r"\s*(?:\{\s*\d+\s*\}|\d+)\s*\)?)$"
)


def normalise(text: str) -> str:
    r"""``text`` without what does not change its value, white space single.

    >>> normalise(r"$\text{204}^\circ$.")
    '204'
    """
    if len(text) > LONGEST:
        return re.sub(r"\s+", " ", text.strip())
    text = _in_latex(text.strip().strip("*"))
    text = re.sub(r"\\?[$\u00a3\u20ac]", "", text)
    # A backslash after another is the end of a matrix row, no command.
    text = re.sub(r",(?:\\!)+\s*(?=\d{3}(?!\d))", ",", text)
    text = _STYLE.sub("", re.sub(r"(?<!\\)\\[()\[\]]", "", text))
    text = re.sub(r"\\([dt])frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"(?<=\d)(?:\\,|\{,\}|\\ |~)(?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"(?<!\\)\\[,;: ]|~", " ", text)
    text = _DEGREES.sub("", text)
    while True:
        text = text.strip().rstrip(".,;: ").strip()
        wrapper = _WRAPPER.match(text)
        start = wrapper.end() if wrapper else 0
        if text.startswith("{", start) and (inside := balanced(text, start)) is not None and inside.strip():
            if start + len(inside) + 2 == len(text):
                text = inside
                continue
            if wrapper and plain_number(inside.strip()) is not None:
                text = inside.strip() + text[start + len(inside) + 2 :]
                continue
        return re.sub(r"\s+", " ", text)


_SIGNS = str.maketrans(
    {"\u2212": "-", "\u2013": "-", "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u00f7": "/", "\u2044": "/",
     "\u00b1": r"\pm ", "\u03c0": r"\pi ", "\u221e": r"\infty "}
)  # fmt: skip
_ROOT = re.compile(r"\u221a\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+(?:\.\d+)?|[A-Za-z]))")
_FRACTION = re.compile(r"[\u00bc-\u00be\u2150-\u215e]")
_RAISED = re.compile(r"[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_LOWERED = re.compile(r"[\u2080-\u2089]+")


def _in_latex(text: str) -> str:
    r"""Signs that are single characters as commands: math-verify passes over most, and takes "5\u221a2" for 5."""
    if text.isascii():
        return text
    text = _FRACTION.sub(lambda m: r"\frac{" + normalize("NFKC", m[0]).replace("\u2044", "}{") + "}", text)
    text = _RAISED.sub(lambda m: f"^{{{normalize('NFKC', m[0])}}}", text)
    text = _LOWERED.sub(lambda m: f"_{{{normalize('NFKC', m[0])}}}", text)
    return _ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2] or m[3]}}}", text).translate(_SIGNS)


def plain_number(text: str) -> Fraction | None:
    """The exact value of an integer, a decimal, or a quotient of integers written out; None for all else."""
    if len(text) > 400:
        return None
    if re.fullmatch(r"[-+]?\d{1,3}(?: \d{3})+", text):
        text = text.replace(" ", "")
    if re.fullmatch(rf"{NUMBER}|[-+]?\.\d+", text):
        return Fraction(text.replace(",", "").replace("\u2212", "-"))
    match = re.fullmatch(r"([-+]?)\s*(?:\\frac\s*(?:\{([-+]?\d+)\}\s*\{(\d+)\}|(\d)\s*(\d))|(\d+)\s*/\s*(\d+))", text)
    if match:
        top, bottom = match[2] or match[4] or match[6], match[3] or match[5] or match[7]
        if int(bottom):
            return Fraction(int(top), int(bottom)) * (-1 if match[1] == "-" else 1)
    return None


def number(text: str) -> Fraction | None:
    """As ``plain_number``, of normalised text that may have a unit or a modulus after the number."""
    value = plain_number(text)
    if value is None and len(text) <= LONGEST:
        bare = _MODULUS.sub("", text)
        value = plain_number(_UNIT_WORDS.sub("", _UNIT_MACRO.sub("", bare).strip()).strip())
    return value


TIMES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def in_full(text: str) -> Fraction | None:
    """The value of a number with its power of ten in words: "1.5 million"."""
    match = re.search(
        rf"^([^A-Za-z\\]+)\s*(?:\\(?:text|mathrm)\s*\{{\s*|\\ )*({'|'.join(TIMES)})\b", text, re.IGNORECASE
    )
    value = plain_number(match[1].strip()) if match else None
    return None if match is None or value is None else value * 10 ** TIMES[match[2].lower()]


def value_side(text: str) -> str | None:
    """The side of a single chain of equalities that gives the value: the last one, unless only another is a number."""
    if "=" not in text or re.search(r"[,;]\s*[A-Za-z\\]|\\(?:text\s*\{\s*(?:and|or)|quad)|[<>!:]=", text):
        return None
    sides = [normalise(side) for side in text.split("=")]
    if not sides[-1]:
        return None
    numbers = [side for side in sides if number(side) is not None]
    return numbers[0] if len(numbers) == 1 else sides[-1]


def canonical(text: str) -> str:
    r"""One spelling for answers that are plainly the same, for votes: "033", "m+n = 33" and ``\text{33}`` are "33"."""
    text = normalise(text)
    side = value_side(text)
    value = number(side if side is not None else text)
    return str(value) if value is not None else text


def bare(text: str) -> str:
    """Without spaces (but those between digits), sizes of brackets, and brackets around a single letter."""
    text = re.sub(r"\\(?:left|right)(?![A-Za-z])|(?<!\d)\s+|\s+(?!\d)", "", text)
    return text[1] if re.fullmatch(r"\([A-Za-z]\)", text) else text
