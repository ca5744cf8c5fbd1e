"""The program in an output: the last code block that is Python.

A block is what stands between two fences of back-ticks. Blocks marked python, py, python3 or py3 count, and bare ones
that read as Python and do something: a bare block with the sample's output, which models like to add after their
program, is none. Blocks in other languages do not count. With no other block, the last bare one is taken as it is, and
fails by itself if it is no program.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from dataclasses import dataclass

PYTHON = ("python", "py", "python3", "py3")

_FENCE = re.compile(r"^(?P<before>.*?)(?P<ticks>`{3,})[ \t]*\{?\.?(?P<info>[^\s`{}]*)[^`]*$")

_LAST_LINE = re.compile(r"(?P<code>[^`#]*[^`#\s\"'][ \t]*)(?P<ticks>`{3,})[ \t]*")
"""A last line of code with the closing fence behind it; not a text or a comment in which one stands."""


@dataclass(frozen=True)
class Block:
    """A code block: language as written (lower case, "" if bare), text, and whether its closing fence is there."""

    language: str
    text: str
    closed: bool


def blocks(text: str) -> list[Block]:
    """All fenced blocks, in order. A fence may follow text on its line when it opens a block that names a language."""
    found: list[Block] = []
    ticks, language = "", ""
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        match = _FENCE.match(line)
        # "```python" inside a block opens the next one: the first was left open.
        opens = match is not None and match["info"].lower() in PYTHON and not match["before"].strip()
        if ticks and not (opens and language in ("", *PYTHON)):
            stripped = line.strip()
            closes = set(stripped) == {"`"} and len(stripped) >= len(ticks)
            if not closes and (last := _LAST_LINE.fullmatch(line)) and len(last["ticks"]) >= len(ticks):
                lines.append(last["code"])
                closes = True
            if closes:
                found.append(Block(language, textwrap.dedent("\n".join(lines)), True))
                ticks, lines = "", []
            else:
                lines.append(line)
        elif match is not None and (not match["before"].strip(" \t>-*0123456789.") or match["info"].lower() in PYTHON):
            if ticks:
                found.append(Block(language, textwrap.dedent("\n".join(lines)), False))
            ticks, language, lines = match["ticks"], match["info"].lower(), []
    if ticks:
        found.append(Block(language, textwrap.dedent("\n".join(lines)), False))
    return found


def extract_code(text: str, *, closed_only: bool = False) -> str | None:
    """The program in ``text`` (the part after the thought), or None.

    Args:
        closed_only: the text was cut off, so a block without its closing fence is half a program and does not count.
    """
    usable = [b for b in blocks(text) if b.text.strip() and (b.closed or not closed_only)]
    bare = [b for b in usable if not b.language]
    programs = [b for b in usable if b.language in PYTHON or (not b.language and _does_something(b.text))]
    chosen = programs or bare
    return chosen[-1].text if chosen else None


def _does_something(code: str) -> bool:
    """Whether the text is Python that defines or calls something; "x = 5" and "Answer: 5" are, but show an output."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    acts = (ast.Call, ast.Await, ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    # "Case: f(1)" parses as an annotation.
    plain = [n for n in body if not (isinstance(n, ast.AnnAssign) and n.value is None)]
    return any(isinstance(part, acts) for node in plain for part in ast.walk(node))
