r"""Mathematical answers: which expression an output ends on, and whether it equals the key.

The last complete box is the answer; without one, the last "answer is ...", a single bold number, or an output that
is a number and nothing else. Comparison goes
from cheap and certain to dear: equal after notation is removed, equal as exact numbers, then math-verify. Two
integers never reach math-verify. math-verify runs in a process of its own (``worker.py``): its own time limits are
SIGALRM handlers, which work in the main thread only and not inside long C routines. Time up means not equal.
"""

from __future__ import annotations

import atexit
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from resetcli.base.errors import ResetError
from resetcli.evaluation.scoring.extraction import balanced, boxes

TIME_LIMIT = 5.0
"""Seconds for one comparison by math-verify."""

LONGEST = 2000
"""Characters beyond which an answer is not parsed, only compared as text."""

_NUMBER = r"[-+\u2212]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_STATEMENT = re.compile(
    r"\banswer(?:\s+to\s[^.:\n]{1,60}?)?[\s*_]*(?:\bis\b|[:=])[\s*_]*(?:[:=][\s*_]*)?"
    r"(?:(?:therefore|thus|then|simply|exactly|indeed)[\s,:*_]*)?"
    r"|^\#{4}[ \t]*(?=[-+$]?[\d,.]+[ \t]*$)",
    re.IGNORECASE | re.MULTILINE,
)
_DELIMITED = re.compile(r"(\$\$?)([^$\n]{1,300})\1|\\\((.{1,300}?)\\\)|\\\[(.{1,300}?)\\\]", re.DOTALL)
_STATED_NUMBER = re.compile(
    rf"\\?\$?\s*({_NUMBER}(?:\s*/\s*\d+)?\s*\\?%?)"
    r"(?![\w^\\(]|\.\d|,\d|\s*[-+*/=^\u00d7\u00b7]|,?\s*(?:or|and|to)\s+\$?\d)"
)
_SENTENCE_END = re.compile(r"[.;!?](?=\s|$|\*)|\n|,?\s(?:because|since|which|as|so|for)\b")
_BOLD_NUMBER = re.compile(
    rf"\*\*\s{{0,3}}(?:\\\(|\$)?\s{{0,3}}({_NUMBER}(?:/\d+)?)"
    r"\s{0,3}(?:\\\)|\$)?\s{0,3}([.):]?)\s{0,3}\*\*"
)


def extract_maths(text: str, *, boxed_only: bool = False) -> str | None:
    """The expression on which ``text`` (the output after its thought) ends, as written, or None.

    ``boxed_only``: the text was cut off, so that an unboxed statement may not be the last.
    """
    if found := boxes(text):
        return found[-1].text
    if boxed_only:
        return None
    statements = list(_STATEMENT.finditer(text))
    if statements:
        return _stated_value(text[statements[-1].end() : statements[-1].end() + 400])
    if (bold := _lone_bold_number(text)) is not None:
        return bold
    # The whole output may be the answer and nothing else: "1,024", "$x+1$".
    whole = text.strip()
    bare = plain_number(normalise(whole)) is not None or _DELIMITED.fullmatch(whole)
    return whole if bare and not _is_prose(whole) else None


def _stated_value(rest: str) -> str | None:
    """The value at the beginning of what follows "answer is", or None if it is prose."""
    if (inside := _DELIMITED.match(rest)) and not _is_prose(
        content := inside[2] or inside[3] or inside[4]
    ):  # "$18. Then $5" is money, not a formula
        return content.strip()
    if number := _STATED_NUMBER.match(rest):
        return number[1].strip()
    end = _SENTENCE_END.search(rest)
    value = rest[: end.start() if end else 200].strip(" *_")
    return value if value and re.search(r"\w", value) and not _is_prose(value) else None


def _is_prose(text: str) -> bool:
    plain = re.sub(r"\\(?:text|mathrm|textbf|mathbf)\s*\{[^{}]*\}|\\[A-Za-z]+", " ", text)
    return bool(re.search(r"[A-Za-z]{3,}|\.\s|\bno\b|\bor\b", plain))


def _lone_bold_number(text: str) -> str | None:
    """The only number that stands alone in bold; list numbers ("**1.** First") do not count."""
    values: dict[str, str] = {}
    for match in _BOLD_NUMBER.finditer(text):
        line_start = text.rfind("\n", 0, match.start()) + 1
        begins_line = not text[line_start : match.start()].strip(" #>-")
        goes_on = bool(text[match.end() : match.end() + 200].partition("\n")[0].strip(" ."))
        if not (begins_line and goes_on):
            values[match[1]] = canonical(match[1])
    return next(iter(values)) if len(set(values.values())) == 1 else None


_WRAPPERS = r"text|textbf|textit|textrm|textsf|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|mbox|emph|fbox|boxed"
_WRAPPER = re.compile(rf"\\(?:{_WRAPPERS})\s*(?=\{{)")
_UNIT_MACRO = re.compile(r"(?:\\(?:text|textrm|mathrm|mbox)\s*\{[^{}]*\}(?:\^\{?\d\}?)?\s*)+$")
_UNIT_WORDS = re.compile(
    r"\s+(?!(?:pi|or|and|to|mod|sqrt|ln|log|sin|cos|tan|infty|inf)\b)[A-Za-z]{2,}(?:\s+[A-Za-z]{2,})*$"
)
_DEGREES = re.compile(r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?|\\degrees?(?![A-Za-z])|°")


def normalise(text: str) -> str:
    r"""``text`` without what does not change its value: ``$``, ``\text{}`` around it all, degrees, spacing, full stop.

    >>> normalise(r"$\text{204}^\circ$.")
    '204'
    """
    if len(text) > LONGEST:
        return re.sub(r"\s+", " ", text.strip())
    text = text.strip().strip("*").replace("\u2212", "-").replace("\\$", "").replace("$", "")
    text = re.sub(r"\\[()\[\]]|\\displaystyle(?![A-Za-z])|\\!", "", text)
    text = re.sub(r"\\([dt])frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"(?<=\d)(?:\\,|\{,\}|\\ |~)(?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"\\[,;: ]|~", " ", text)
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


def plain_number(text: str) -> Fraction | None:
    """The exact value of an integer, a decimal, or a quotient of integers written out; None for all else."""
    if len(text) > 400:
        return None
    if re.fullmatch(rf"{_NUMBER}|[-+]?\.\d+", text):
        return Fraction(text.replace(",", "").replace("\u2212", "-"))
    match = re.fullmatch(r"([-+]?)\s*(?:\\frac\s*(?:\{([-+]?\d+)\}\s*\{(\d+)\}|(\d)\s*(\d))|(\d+)\s*/\s*(\d+))", text)
    if match:
        top, bottom = match[2] or match[4] or match[6], match[3] or match[5] or match[7]
        if int(bottom):
            return Fraction(int(top), int(bottom)) * (-1 if match[1] == "-" else 1)
    return None


def _without_unit(text: str) -> str:
    return _UNIT_WORDS.sub("", _UNIT_MACRO.sub("", text).strip()).strip()


def _right_side(text: str) -> str | None:
    """What stands right of the last "=" of a single chain of equalities, or None."""
    if re.search(r"[,;]\s*[A-Za-z\\]|\\(?:text\s*\{\s*(?:and|or)|quad)|[<>!:]=", text):
        return None
    _, sign, right = text.rpartition("=")
    return normalise(right) if sign and right.strip() else None


def _number(text: str) -> Fraction | None:
    value = plain_number(text)
    return value if value is not None or len(text) > LONGEST else plain_number(_without_unit(text))


def canonical(text: str) -> str:
    r"""One spelling for answers that are plainly the same, for votes: "033", "m+n = 33" and ``\text{33}`` are "33"."""
    text = normalise(text)
    right = _right_side(text)
    value = _number(right if right is not None else text)
    return str(value) if value is not None else text


def equal(target: str, answer: str, alt_answers: Sequence[str] = (), seconds: float = TIME_LIMIT) -> bool:
    """Whether ``answer`` equals ``target`` or one of ``alt_answers``.

    Raises:
        ResetError: the comparison itself failed (not: ran out of time); that is no wrong answer.
    """
    return any(_equal(normalise(key), normalise(answer), seconds) for key in (target, *alt_answers))


def _equal(gold: str, answer: str, seconds: float) -> bool:
    if not answer or gold == answer or _bare(gold) == _bare(answer):
        return bool(answer)
    if "=" not in gold and (right := _right_side(answer)) is not None:
        answer = right
        if gold == answer or _bare(gold) == _bare(answer):
            return True
    gold_value, value = _number(gold), _number(answer)
    if gold_value is None or value is None:
        percent = r"\s*\\?%$"
        if bool(re.search(percent, gold)) != bool(re.search(percent, answer)):
            # "50%" for a key of 50; math-verify still gets 0.5 against 50%.
            first, second = _number(re.sub(percent, "", gold)), _number(re.sub(percent, "", answer))
            if first is not None and first == second:
                return True
    elif gold_value == value:
        return True
    elif gold_value.denominator == value.denominator == 1:
        return False
    if len(answer) > LONGEST:
        return False
    return GRADER.equal(gold, answer, seconds)


def _bare(text: str) -> str:
    """Without spaces, sizes of brackets, and brackets around a single letter."""
    text = re.sub(r"\\(?:left|right)(?![A-Za-z])|\s+", "", text)
    return text[1] if re.fullmatch(r"\([A-Za-z]\)", text) else text


class Grader:
    """math-verify behind a pipe, started at the first comparison that needs it. Safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def equal(self, gold: str, answer: str, seconds: float = TIME_LIMIT) -> bool:
        """math-verify's verdict; False when ``seconds`` (wall clock) are over.

        Raises:
            ResetError: math-verify raised, or its process died twice of something else than the time limit.
        """
        request = json.dumps({"gold": gold, "answer": answer, "seconds": seconds}) + "\n"
        with self._lock:
            for _ in range(2):
                process = self._start()
                assert process.stdin is not None and process.stdout is not None
                try:
                    process.stdin.write(request)
                    process.stdin.flush()
                    line = process.stdout.readline()
                except BrokenPipeError:
                    line = ""
                if line:
                    break
                code = process.wait()
                self._process = None
                if code == -signal.SIGALRM:
                    return False
            else:
                raise ResetError(f"the process that compares answers died (exit code {code}) on {answer[:80]!r}")
        reply = json.loads(line)
        if "error" in reply:
            raise ResetError(f"comparing the answer {answer[:80]!r} with its key failed: {reply['error']}")
        return bool(reply["equal"])

    def close(self) -> None:
        """End the process; the next call starts another."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.communicate()
                self._process = None

    def _start(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        # -P keeps this folder off the path; a session of its own keeps Ctrl-C for us.
        worker = [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))]
        process = subprocess.Popen(
            worker,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            process.kill()
            process.communicate()
            raise ResetError("cannot start math-verify, which compares answers; check that math-verify is installed")
        self._process = process
        return process


GRADER = Grader()
atexit.register(GRADER.close)
