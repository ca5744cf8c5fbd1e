"""200 outputs written by hand, each with the one right reading; every row must come out as it says.

``golden.jsonl`` holds outputs as models write them (a thought, a summary, a box) and the hard cases among them. Answers
and verdicts were written down with the outputs, not taken from the code.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from resetcli.evaluation.scoring.score import Score, score_output
from resetcli.evaluation.tasks import TASKS

ROWS = [json.loads(line) for line in Path(__file__).with_name("golden.jsonl").read_text("utf-8").splitlines()]


def test_the_file_is_what_it_claims():
    assert len(ROWS) == 200 == len({row["id"] for row in ROWS})
    assert Counter(row["task"] for row in ROWS) == {"aime": 90, "gpqa": 68, "math500": 23, "gsm8k": 19}
    verdicts = Counter(row["why"] for row in ROWS)
    assert set(verdicts) == {"correct", "wrong", "unparsed", "truncated"} and min(verdicts.values()) >= 10
    # Nothing twice: what differs is the output or its key.
    assert len({(row["text"], row["target"], row["finish_reason"]) for row in ROWS if row["text"]}) >= 195
    for row in ROWS:
        assert row["score"] == (row["why"] == "correct")
        assert (row["answer"] is None) == (row["why"] in ("unparsed", "truncated"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_row(row):
    got = score_output(
        TASKS[row["task"]].kind, row["text"], row["target"], row["finish_reason"],
        alt_answers=row.get("alt_answers", ()), opened_in_prompt=row.get("opened_in_prompt", False),
    )  # fmt: skip
    assert got == Score(row["answer"], row["score"], row["why"])
