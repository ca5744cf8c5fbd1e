"""Must show: right programs for problems of the sample pass, the same with a slip fail, on the real tests.

The sample's tests are read through the task's own rows, so data reading, extraction, sandbox and comparison all run.
"""

from __future__ import annotations

import pytest
from lcb_solutions import PLAIN_FUNCTION, SOLUTIONS

from resetcli.data.sources import DataSource, load_task_rows
from resetcli.evaluation.code.grade import score_code


@pytest.fixture(scope="module")
def rows(shared_data):
    return {row["doc_id"]: row for row in load_task_rows("livecodebench", DataSource(shared_data)).rows}


def test_the_sample_is_whole(rows) -> None:
    assert len(rows) == 20 and set(SOLUTIONS) <= set(rows)
    assert sum(row["private"] for row in rows.values()) == 4 == rows["1873_A"]["private"]
    assert all(row["target"] == doc_id for doc_id, row in rows.items())


@pytest.mark.parametrize("name", SOLUTIONS)
def test_right_passes_and_wrong_fails(rows, name) -> None:
    code, (part, slip) = SOLUTIONS[name]
    assert part in code
    right = score_code(rows[name], f"<think>hm</think>So:\n```python\n{code}```\nDone.")
    assert (right.score, right.why) == (1, "correct"), right
    wrong = score_code(rows[name], f"<think>hm</think>So:\n```py\n{code.replace(part, slip)}\n```")
    assert (wrong.score, wrong.why) == (0, "wrong") and "wrong output" in wrong.answer, wrong


def test_a_plain_function_passes(rows) -> None:
    name, code = PLAIN_FUNCTION
    assert score_code(rows[name], f"```\n{code}```").answer == "passed all 2 tests"
