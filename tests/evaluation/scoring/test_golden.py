"""200 outputs written by hand, each with the one right reading; every row must come out as it says.

``golden.jsonl`` holds outputs as models write them (a thought, a summary, a box) and the hard cases among them. Answers
and verdicts were written down with the outputs, not taken from the code.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from resetcli.engines.prompting import opens_thought
from resetcli.evaluation.rescore import rescore_file
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
        alt_answers=row.get("alt_answers", ()), opened_in_prompt=opens_thought(row.get("prompt", "")),
    )  # fmt: skip
    assert got == Score(row["answer"], row["score"], row["why"])


@pytest.mark.parametrize("task", sorted({row["task"] for row in ROWS}))
def test_the_file_as_reset_score_takes_it(task, tmp_path):
    """The rows carry their verdicts, and `reset score` finds none to change."""
    rows = [row for row in ROWS if row["task"] == task]
    (tmp_path / "outputs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scored = rescore_file(tmp_path / "outputs.jsonl", task)
    assert scored.changed == [] and list(scored.lines()) == rows
