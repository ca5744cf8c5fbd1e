"""The comparison itself: limits that hold in any thread, errors that stay errors, and equality by properties."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resetcli.base.errors import ResetError
from resetcli.evaluation.scoring import grader as grading
from resetcli.evaluation.scoring import maths
from resetcli.evaluation.scoring.equality import equal
from resetcli.evaluation.scoring.extraction import boxes
from resetcli.evaluation.scoring.grader import Grader
from resetcli.evaluation.scoring.notation import canonical
from resetcli.evaluation.scoring.score import score_output

pieces = st.recursive(
    st.text(alphabet="ab1+ ", max_size=4) | st.sampled_from([r"\{", r"\}", r"\\", r"\frac"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "{" + "".join(parts) + "}"),
    max_leaves=12,
)


@given(st.lists(pieces, max_size=5).map("".join), st.sampled_from(["boxed", "fbox"]), st.sampled_from(["", " ", "\n"]))
def test_nested_braces_come_back_whole(content, command, space):
    found = boxes("x } " + "\\" + command + space + "{" + content + "} y {")
    assert [box.text for box in found] == ([content.strip()] if content.strip(" {}") else [])


@given(st.integers(-(10**12), 10**12))
def test_spellings_of_an_integer_are_one_answer(value):
    sign, size = "-" * (value < 0), abs(value)
    spellings = f"{value}", f"{value:,}", f"{sign}00{size}", rf"\text{{{value}}}", f"${value}^\\circ$.", f"n = {value}"
    for text in spellings:
        assert canonical(text) == str(value)
        assert equal(str(value), text) and not equal(str(value + 1), text)


@given(st.text(alphabet="\\{}boxed$*_(),.=+-^ \nanswer:ABCD0123456789", max_size=200))
def test_no_output_breaks_the_extraction(text):
    score_output("letters", text, "A")
    maths.extract_maths(text)
    canonical(text)


def test_after_an_interruption_replies_belong_to_their_questions():
    def interrupt(*_):
        raise KeyboardInterrupt

    grader = Grader()
    assert grader.equal("x+1", "1+x")
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            grader.equal("1", r"\int_0^1 \int_0^1 \sin(x^y) dx dy", 2.0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [grader.equal("x+1", answer) for answer in ("1+x", "y", "1+x")] == [True, False, True]
    grader.close()


def test_time_limit_holds_in_another_thread_and_the_next_comparison_works():
    results: list[object] = []
    grader = Grader()

    def work():
        began = time.monotonic()
        results.append(grader.equal("5", "9^{9^{9^{9}}}", 1.0))
        results.append(time.monotonic() - began)
        results.append(grader.equal(r"\frac{\pi}{2}", r"\pi/2"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    grader.close()
    assert results[0] is False and results[2] is True
    assert 0.9 < results[1] < 20  # the start of the process included


def test_a_grader_that_raises_is_an_error_not_a_zero(monkeypatch, tmp_path):
    broken = tmp_path / "worker.py"
    broken.write_text(
        "import sys\nprint('ready', flush=True)\nfor line in sys.stdin:\n"
        '    print(\'{"error": "ValueError: broken"}\', flush=True)\n'
    )
    monkeypatch.setattr(grading, "__file__", str(tmp_path / "grader.py"))
    monkeypatch.setattr(grading, "GRADER", Grader())
    with pytest.raises(ResetError, match="ValueError: broken"):
        score_output("math", r"\boxed{x^2}", "y")
    grading.GRADER.close()
    broken.write_text("import sys\nprint('ready', flush=True)\nsys.stdin.readline()\nsys.exit(3)\n")
    with pytest.raises(ResetError, match=r"died \(exit code 3\)"):
        score_output("math", r"\boxed{x^2}", "y")
    broken.write_text("import no_such_module\n")
    with pytest.raises(ResetError, match="cannot start math-verify"):
        score_output("math", r"\boxed{x^2}", "y")


def test_an_error_inside_math_verify_is_an_error_too(monkeypatch, tmp_path):
    """Unless told otherwise it takes what it trips over as unequal."""
    (tmp_path / "sitecustomize.py").write_text(
        "import math_verify.grader\ndef broken(*_, **__): raise RuntimeError('sympy broke')\n"
        "math_verify.grader.sympy_expr_eq = broken\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    grader = Grader()
    with pytest.raises(ResetError, match="RuntimeError: sympy broke"):
        grader.equal("x+1", "1+x")
    grader.close()


def test_what_is_too_deep_for_math_verify_is_unequal():
    assert equal("[3,4)", "x" + "!" * 600) is False


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 20000,
        r"\boxed{" + " " * 100000 + "}",
        "** " + " " * 100000,
        "\n" * 100000,
        "</think>\n" + "-" * 40000,
        "</think>\n" + "#### " * 8000,
        "So" + " " * 40000 + "x",
        "<|a|>" * 16000 + "x",
        "x" + "<|a|>  " * 16000,
    ],
    ids=range(9),
)
def test_degenerate_outputs_cost_no_time(text):
    began = time.monotonic()
    for kind in ("math", "letters"):
        assert score_output(kind, text, "C").answer is None
    assert time.monotonic() - began < 10
