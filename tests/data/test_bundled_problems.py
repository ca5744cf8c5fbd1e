"""The answers of the bundled problems, each worked out here from the numbers in its text."""

from __future__ import annotations

import ast
import datetime
import itertools
import json
import math
import operator
import re
from fractions import Fraction
from importlib import resources

import pytest
import sympy

X, Y = sympy.symbols("x y")


def solve(equation: sympy.Expr) -> list[sympy.Expr]:
    """Roots of ``equation`` = 0."""
    return sympy.solve(equation, X)


def nora() -> int:
    (age,) = (n for n in range(100) if n + (n - 5) == 29)
    return age


def tenth_term() -> int:
    terms = [4, 11, 18, 25]
    (step,) = {b - a for a, b in itertools.pairwise(terms)}
    while len(terms) < 10:
        terms.append(terms[-1] + step)
    return terms[9]


WORKED = {
    "easy-triangle": lambda: len("abc"),  # general knowledge, said in another way where there is one
    "easy-square": lambda: len(((0, 0), (0, 1), (1, 1), (1, 0))),
    "easy-year": lambda: datetime.date(2025, 12, 31).month,
    "easy-week": lambda: datetime.timedelta(weeks=1).days,
    "easy-hour": lambda: datetime.timedelta(hours=1) // datetime.timedelta(minutes=1),
    "easy-car": lambda: 2 + 2,
    "easy-hand": lambda: 1 + 4,
    "easy-age": lambda: 9,
    "easy-pens": lambda: 6 + 0,
    "easy-card": lambda: 25,
    "easy-larger": lambda: max(3, 9),
    "easy-next": lambda: 9 + 1,
    "easy-half": lambda: Fraction(10, 2),
    "own-pencils": lambda: 4 * 12 - 31,
    "own-train": lambda: (11 * 60 + 15) - (9 * 60 + 40),
    "own-linear": lambda: solve(3 * X + 7 - 31)[0],
    "own-rectangle": lambda: 9 + 6 + 9 + 6,
    "own-tickets": lambda: 2 * 8 + 3 * 5,
    "own-remainder": lambda: 100 % 7,
    "own-percent": lambda: 40 - 40 * Fraction(25, 100),
    "own-average": lambda: Fraction(14 + 18 + 22 + 26, 4),
    "own-ages": nora,
    "own-system": lambda: sympy.solve([X + Y - 20, X - Y - 6], [X, Y])[X],
    "own-eggs": lambda: sum(5 for _hen in range(6) for _week in range(3)),
    "own-triangle": lambda: 180 - 48 - 75,
    "own-apples": lambda: 15 - 15 // 3 - 2,
    "own-speed": lambda: 18 * Fraction(5, 2),
    "own-quadratic": lambda: max(solve(X**2 - 5 * X - 14)),
    "own-gcd": lambda: max(d for d in range(1, 85) if 84 % d == 126 % d == 0),
    "own-sequence": tenth_term,
    "own-tank": lambda: Fraction(240, 15),
    "own-committee": lambda: len(list(itertools.combinations(range(7), 2))),
    "own-savings": lambda: sum(3 + 2 * day for day in range(6)),
}
"""What the words mean, by id. Problems that state a formula are not here: their text is computed."""

OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: Fraction, ast.Pow: operator.pow,
}  # fmt: skip
FORMULA = re.compile(r"(?:What is|Compute|Evaluate) ([-\d+*/^() ]+|\d+ (?:times|divided by) \d+)[?.]")


def compute(formula: str) -> Fraction | int:
    """Exact value of whole numbers under + - * / ^ and parentheses."""

    def value(node: ast.expr) -> Fraction | int:
        if isinstance(node, ast.Constant):
            assert isinstance(node.value, int)
            return node.value
        assert isinstance(node, ast.BinOp)
        return OPERATORS[type(node.op)](value(node.left), value(node.right))

    return value(ast.parse(formula.replace("^", "**"), mode="eval").body)


def read(name: str) -> list[dict]:
    text = (resources.files("resetcli.data") / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def problems() -> list[dict]:
    return read("easy_problems.jsonl") + read("own_problems.jsonl")


@pytest.mark.parametrize("problem", problems(), ids=lambda problem: problem["id"])
def test_the_answer_is_right(problem: dict) -> None:
    if match := FORMULA.fullmatch(problem["problem"]):
        assert problem["id"] not in WORKED
        found = compute(match[1].replace("times", "*").replace("divided by", "/"))
    else:
        found = WORKED[problem["id"]]()
        # A text whose numbers change needs its working looked at again.
        assert set(re.findall(r"\d+", problem["problem"])) == NUMBERS[problem["id"]]
    assert Fraction(problem["answer"]) == Fraction(str(found))


NUMBERS = {name: set() for name in WORKED} | {
    "easy-half": {"10"}, "easy-age": {"9"}, "easy-pens": {"6"}, "easy-card": {"25"}, "easy-larger": {"3", "9"},
    "easy-next": {"9"}, "own-pencils": {"12", "4", "31"}, "own-train": {"9", "40", "11", "15"},
    "own-linear": {"3", "7", "31"}, "own-rectangle": {"9", "6"}, "own-tickets": {"8", "5", "2", "3"},
    "own-remainder": {"100", "7"}, "own-percent": {"40", "25"}, "own-average": {"14", "18", "22", "26"},
    "own-ages": {"5", "29"}, "own-system": {"20", "6"}, "own-eggs": {"5", "6", "3"}, "own-triangle": {"48", "75"},
    "own-apples": {"15", "2"}, "own-speed": {"18"}, "own-quadratic": {"2", "5", "14", "0"},
    "own-gcd": {"84", "126"}, "own-sequence": {"4", "11", "18", "25"}, "own-tank": {"240", "15"},
    "own-committee": {"2", "7"}, "own-savings": {"3", "2", "6"},
}  # fmt: skip
"""The numbers of each text that was worked out by hand."""


def test_nothing_is_worked_out_for_a_problem_that_is_gone() -> None:
    assert set(WORKED) <= {problem["id"] for problem in problems()}


@pytest.mark.parametrize("name", ["easy_problems.jsonl", "own_problems.jsonl"])
def test_ids_and_texts_are_all_different_and_answers_are_plain(name: str) -> None:
    rows = read(name)
    for key in ("id", "problem"):
        assert len({row[key] for row in rows}) == len(rows)
    assert all(set(row) == {"id", "problem", "answer"} and re.fullmatch(r"\d+", row["answer"]) for row in rows)


@pytest.mark.parametrize(("formula", "value"), [("6 + 4 * (10 - 7) - 8 / 2", 14), ("2^5 + 3^3", 59), ("1 / 3", None)])
def test_the_computation(formula: str, value: int | None) -> None:
    assert compute(formula) == (Fraction(1, 3) if value is None else value)
    assert math.isclose(float(compute(formula)), float(eval(formula.replace("^", "**"))))
