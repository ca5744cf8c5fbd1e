"""Which block of an output is the program."""

from __future__ import annotations

import pytest

from resetcli.evaluation.code.extraction import blocks, extract_code
from resetcli.evaluation.code.grade import score_code

P, Q = "print(1)", "print(2)\nx = 3"


@pytest.mark.parametrize(
    "text, wanted",
    [
        (f"```python\n{P}\n```", P),
        (f"```py\n{P}\n```", P),
        (f"```Python3\n{P}\n```", P),
        (f"```{{.python}}\n{P}\n```", P),
        (f"```\n{P}\n```", P),
        (f"````python\n{P}\n````", P),
        (f'```python title="a.py"\n{P}\n```', P),
        (f"first\n```python\n{P}\n```\nthen\n```python\n{Q}\n```\n", Q),
        (f"```python\n{P}\n```\nthen\n```\n{Q}\n```\n", Q),
        # the sample's output, other languages and empty blocks after the program
        (f"```python\n{P}\n```\nIt prints\n```\n1\n2 3\n```\n", P),
        (f"```python\n{P}\n```\nIt prints\n```\nYes\n```\n", P),
        (f"```python\n{P}\n```\n```text\n1\n```\n```cpp\nint main() {{}}\n```\n```python\n```\n", P),
        (f"```python\n{P}\n```\nIt prints\n```\nAnswer: 5\nCase: f(1)\nx = 3\n```\n", P),
        # a closing fence behind the last line, and one that was forgotten
        (f"```python\n{P}```\nIt prints\n```\n1\n```\n", P),
        (f"```python\n{Q}\n\nBetter:\n```python\n{P}\n```\n", P),
        ('```python\ns = "```"\nt = 1  # ```\nprint(s)\n```', 's = "```"\nt = 1  # ```\nprint(s)'),
        # fences on the line of other text, indented in a list, with CRLF
        (f"Here: ```python\n{P}\n```", P),
        ("1. so\n   ```python\n   if 1:\n       print(1)\n   ```\n", "if 1:\n    print(1)"),
        (f"```python\r\n{P}\r\n```\r\n", P),
        # back-ticks inside the program
        ("```python\ns = '```'\nprint(s)\n```", "s = '```'\nprint(s)"),
        # a block that nobody closed is the program if the text ended by itself
        (f"So\n```python\n{P}\n", P + "\n"),
        # broken Python is still the program: it fails, it is not lost
        ("```python\ndef f(:\n```", "def f(:"),
        ("```\ndef f(:\n```", "def f(:"),
        ("no code at all", None),
        ("`print(1)` inline", None),
        ("```cpp\nint x;\n```", None),
        ("", None),
        (P, None),
    ],
)
def test_the_last_python_block(text, wanted) -> None:
    assert extract_code(text) == wanted


def test_a_cut_off_block_does_not_count() -> None:
    text = f"```python\n{P}\n```\nbetter:\n```python\nprint(2"
    assert extract_code(text, closed_only=True) == P
    assert [b.closed for b in blocks(text)] == [True, False]
    assert extract_code("```python\nprint(2", closed_only=True) is None


@pytest.mark.parametrize(
    "text, reason, why",
    [
        (f"<think>```python\n{P}\n```", "stop", "unparsed"),
        (f"<think>```python\n{P}\n```", "length", "truncated"),
        (f"```python\n{P}\n```", "length", "truncated"),
        (f"<think>a</think>```python\n{P}", "length", "truncated"),
        ("<think>a</think>I cannot", "stop", "unparsed"),
        ("<think>a</think>I cannot", "length", "truncated"),
        ("<think>a</think>I cannot", "error", "unparsed"),
    ],
)
def test_without_a_program_nothing_runs(text, reason, why) -> None:
    found = score_code({"place": {"path": "/nowhere", "offset": 0, "length": 1}}, text, reason)
    assert (found.answer, found.score, found.why) == (None, 0, why)
