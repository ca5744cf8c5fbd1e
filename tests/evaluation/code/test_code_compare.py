"""Equality of outputs: white space, numbers, values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resetcli.evaluation.code.compare import same_output, same_value


@pytest.mark.parametrize(
    "expected, found, same",
    [
        ("1\n2", "1 \n2", True),
        ("1\n2\n", "1\n2", True),
        ("1 2", "1\r\n2\r\n\r\n", True),
        ("", "  \n", True),
        ("1 2", "12", False),
        ("1 2", "1", False),
        ("1", "1 2", False),
        ("", "0", False),
        ("3", "3.0", True),
        ("3", "03", True),
        ("3", "+3", True),
        ("3", "3.0000001", False),
        ("3", "4", False),
        ("0.5", ".5", True),
        ("0.333333333", "0.3333334", True),
        ("0.3333", "0.3343", False),
        ("1e9", "1000000000", True),
        ("1000000.0", "1000000.5", True),
        ("1000000.0", "1000002.0", False),
        ("100000000000000000001", "100000000000000000000", False),
        ("9" * 5000, "9" * 5000, True),
        ("Yes", "YES", False),
        ("nan", "nan", True),
        ("0.5", "nan", False),
        ("0.5", "inf", False),
        ("1.5", "1_5", False),
        ("1.0", "1e999999", False),
        ("1.0", "1e9999999999", False),
        ("é", "é", True),
        ("0.0", "-0.0", True),
    ],
)
def test_outputs(expected, found, same) -> None:
    assert same_output(expected.encode(), found.encode()) is same


@pytest.mark.parametrize(
    "expected, found, same",
    [
        ("[1, 2]", "[1, 2]", True),
        ("[1, 2]", "[2, 1]", False),
        ("[1, 2]", "[1]", False),
        ("[]", "null", False),
        ("2", "2.0", True),
        ("2.0", "2", True),
        ("0.1", "0.10000000001", True),
        ("0.1", "0.2", False),
        ("2", "2.0001", False),
        ("true", "true", True),
        ("true", "false", False),
        ('"a"', '"a"', True),
        ('"a"', '"a "', False),
        ('""', "null", False),
        ("[[1.0], [2.5]]", "[[1], [2.5000000001]]", True),
        ('{"a": 1.5}', '{"a": 1.5}', True),
        ('{"a": 1}', '{"b": 1}', False),
        ("1", "nonsense", False),
        ("1.5", "NaN", False),
        ("1.5", "1" + "0" * 400, False),
        ("1", "", False),
        ("1", "[" * 100000, False),
        ("9" * 5000, "9" * 5000, True),
        ("9" * 5000, "8" * 5000, False),
        ("1.5", '"1.5"', False),
    ],
)
def test_values(expected, found, same) -> None:
    assert same_value(expected, found.encode()) is same


@given(st.lists(st.text(alphabet="ab10.-e", min_size=1, max_size=4), max_size=6), st.data())
def test_white_space_never_matters(tokens, data) -> None:
    spaces = [data.draw(st.text(alphabet=" \n\t", min_size=1, max_size=3)) for _ in range(len(tokens) + 1)]
    other = "".join(a + b for a, b in zip(spaces, [*tokens, ""], strict=True))
    assert same_output(" ".join(tokens).encode(), other.encode())


@given(st.integers(), st.integers())
def test_integers_are_exact(a, b) -> None:
    assert same_output(str(a).encode(), str(b).encode()) is (a == b)
    assert same_value(str(a), str(b).encode()) is (a == b)
