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
        if ticks:
            stripped = line.strip()
            if set(stripped) == {"`"} and len(stripped) >= len(ticks):
                found.append(Block(language, textwrap.dedent("\n".join(lines)), True))
                ticks, lines = "", []
            else:
                lines.append(line)
        elif match is not None and (not match["before"].strip(" \t>-*0123456789.") or match["info"].lower() in PYTHON):
            ticks, language = match["ticks"], match["info"].lower()
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
    """Whether the text is Python with a statement beyond names, numbers and texts standing alone."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    calls = (ast.Call, ast.Await, ast.NamedExpr)
    return any(not isinstance(node, ast.Expr) or any(isinstance(n, calls) for n in ast.walk(node)) for node in body)
