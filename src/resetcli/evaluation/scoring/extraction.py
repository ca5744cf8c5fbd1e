"""What of an output may be read as its answer: the thought is cut off, boxes are found.

A thought in which an answer is weighed is not an answer. So everything up to the last end-of-thought marker goes;
a thought that never ended leaves nothing; text after a thought that was cut off at the token limit counts only
where it holds a complete box. Nothing else cuts: blank lines, "Question:" and the like may stand anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ThoughtMarkers:
    """The texts with which a model opens and closes its thought."""

    open: str = "<think>"
    close: str = "</think>"


DEFAULT_MARKERS = ThoughtMarkers()

ThoughtState = Literal["none", "open", "closed"]


@dataclass(frozen=True)
class Split:
    """``state`` of the thought, and what follows it: the whole text if there was none, "" if it never ended."""

    state: ThoughtState
    answer: str


def split_thought(text: str, markers: ThoughtMarkers = DEFAULT_MARKERS, *, opened_in_prompt: bool = False) -> Split:
    """Cut the thought off. The marker that stands last decides; a close without an open closes all before it.

    Args:
        text: the generated text, without the prompt.
        opened_in_prompt: the chat template ended the prompt inside an open thought.
    """
    opened, closed = text.rfind(markers.open), text.rfind(markers.close)
    if closed < 0 and opened < 0:
        return Split("open", "") if opened_in_prompt else Split("none", text)
    if closed > opened:
        return Split("closed", text[closed + len(markers.close) :])
    return Split("open", "")


@dataclass(frozen=True)
class Readable:
    """What may be read of an output: ``text``, complete boxes only if it was ``cut`` off; ``why_not`` if nothing."""

    text: str
    cut: bool = False
    why_not: Literal["truncated", "unparsed"] | None = None


_END_TOKEN = re.compile(r"(?:<\|[^<>|\s]{1,40}\|>|<\uff5c[^<>\s]{1,40}\uff5c>|</s>|<eos>|<end_of_turn>)\s{0,9}\Z")


def readable(
    text: str,
    finish_reason: str | None,
    markers: ThoughtMarkers = DEFAULT_MARKERS,
    *,
    opened_in_prompt: bool = False,
) -> Readable:
    """The part of ``text`` in which to look for an answer.

    ``finish_reason`` "length" means cut off at the token limit; "error" (NaN logits) is treated as cut off too but
    counts as unparsed; anything else, None included, means the model ended by itself.
    """
    split = split_thought(text, markers, opened_in_prompt=opened_in_prompt)
    cut = finish_reason in ("length", "error")
    lost: Literal["truncated", "unparsed"] = "truncated" if finish_reason == "length" else "unparsed"
    if split.state == "open" or (split.state == "none" and cut):
        return Readable("", why_not=lost)
    return Readable(_without_end_tokens(split.answer), cut=cut)


def _without_end_tokens(text: str) -> str:
    """``text`` without the end tokens that programs leave which decode without skipping them.

    One at a time from the end: a pattern for all of them takes quadratic time where a looping model writes thousands.
    """
    end = bare = len(text.rstrip())
    while token := _END_TOKEN.search(text, max(0, end - 60), end):
        end = token.start()
    return text[:end] if end < bare else text


# Of white space, only a blank before the statement: "B is wrong\nAnswer: C" states C.
_SUPPOSED = re.compile(
    r"(?:(?:\b(?:if|whether|unless|suppos(?:e|ing)|assum(?:e|ing)|doubt|no way"
    r"|(?:un|not )(?:likely|sure|certain|clear|convinced)|(?:first|initially|originally) (?:thought|said|guessed)"
    r"|(?:might|may|could) (?:think|say|guess))|(?:\bnot|n['\u2019]t) (?:think|believe|say|mean|agree))"
    r"(?: that)?(?: (?:the|my|an?|its))?(?: (?:correct|right|best|final))?"
    r"|\b(?:wrong|incorrect|worst|previous|earlier|second-best|student['\u2019]s)) $",
    re.IGNORECASE,
)


def supposed(text: str, start: int) -> bool:
    """Whether what begins at ``start`` ("answer is 5") is not stated but supposed, doubted or of something else."""
    return bool(_SUPPOSED.search(text[max(0, start - 80) : start]))


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BLANK = re.compile(r"\\[,;:! ]|\\q?quad(?![A-Za-z])|[\s~?._{}$-]")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_UNBRACED = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?|\\[dt]?frac\s*\{[^{}]*\}\s*\{[^{}]*\}|[A-Za-z](?![A-Za-z])")


@dataclass(frozen=True)
class Found:
    """A candidate answer and where in the text it begins."""

    text: str
    start: int


def boxes(text: str, *, cut: bool = False) -> list[Found]:
    r"""Contents of all complete ``\boxed{..}`` and ``\fbox{..}``, in order of where they begin.

    Braces nest, escaped ones do not count; white space may follow the command; a number, a fraction of plain parts
    or a single letter may stand without braces. Boxes that are empty or not closed are left out; of a text that was
    ``cut`` off also what stands without braces at its very end, since more of it may have been to come.
    """
    closes = _closing_braces(text)
    found = []
    for match in _BOX.finditer(text):
        if text.startswith("{", match.end()):
            close = closes.get(match.end())
            content = text[match.end() + 1 : close] if close is not None else None
        else:
            bare = _UNBRACED.match(text, match.end())
            whole = bare is not None and not (cut and bare.end() == len(text))
            content = bare.group().rstrip(",") if bare and whole else None
        if content is not None and _BLANK.sub("", content):
            found.append(Found(content.strip(), match.start()))
    return found


def _closing_braces(text: str) -> dict[int, int]:
    """Position of each brace that opens and is closed -> where. One pass: a looping model writes thousands."""
    stack: list[int] = []
    closes: dict[int, int] = {}
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            stack.append(match.start())
        elif match.group() == "}" and stack:
            closes[stack.pop()] = match.start()
    return closes


def balanced(text: str, start: int) -> str | None:
    """What stands between the brace at ``start`` and the one that closes it, or None if none does."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        depth += (match.group() == "{") - (match.group() == "}")
        if depth == 0:
            return text[start + 1 : match.start()]
    return None
