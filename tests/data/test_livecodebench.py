"""Rows of LiveCodeBench: releases, dates, and bad rows named by file, line and problem."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from datetime import date

import pytest

from resetcli.base.errors import ResetError, UsageError
from resetcli.data.livecodebench import Selection, load_rows, read_problem, shards_of
from resetcli.data.sources import DataSource, load_task_rows

CASE = {"input": "1", "output": "2", "testtype": "stdin"}


def row(name="p1", day="2024-10-05T00:00:00", public=(CASE,), private="[]", **more):
    return {
        "question_id": name,
        "question_content": f"Add one ({name}).",
        "platform": "atcoder",
        "difficulty": "easy",
        "contest_date": day,
        "starter_code": "",
        "public_test_cases": json.dumps(list(public)),
        "private_test_cases": private,
        "metadata": "{}",
        **more,
    }


def write(folder, *rows, name="livecodebench_v5.jsonl"):
    path = folder / name
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def test_releases() -> None:
    assert shards_of("release_v1") == ["v1"] and shards_of("v5") == ["v5"]
    assert shards_of("release_v3") == ["v1", "v2", "v3"] and shards_of("v4_v6") == ["v4", "v5", "v6"]
    assert shards_of("release_latest") == shards_of("release_v6") == [f"v{n}" for n in range(1, 7)]
    for wrong in ("release_v9", "v7", "v6_v4", "", "latest"):
        with pytest.raises(UsageError, match=f"unknown --lcb-release '{wrong}'"):
            Selection.parse(wrong)


def test_windows() -> None:
    assert Selection.parse(None, "2024-10", "2025-02") == Selection(None, date(2024, 10, 1), date(2025, 2, 28))
    assert Selection.parse("v6", "2024-12-03", "2024-12").last == date(2024, 12, 31)
    assert Selection.parse("v6", "2024-10").describe() == {"release": "v6", "from": "2024-10-01", "to": None}
    for first, last, words in [
        ("soon", None, "--lcb-from soon is no date"),
        (None, "2024-13", "--lcb-to 2024-13"),
        ("2025-01", "2024-12", "is after"),
    ]:
        with pytest.raises(UsageError, match=words):
            Selection.parse(None, first, last)


def test_rows_of_a_window(tmp_path) -> None:
    days = ["2024-09-30", "2024-10-01", "2024-10-31T23:00:00", "2024-11-01"]
    write(tmp_path, *(row(f"p{i}", day) for i, day in enumerate(days)))
    source = DataSource(tmp_path, lcb=Selection.parse(None, "2024-10", "2024-10"))
    data = load_task_rows("livecodebench", source)
    assert [r["doc_id"] for r in data.rows] == ["p1", "p2"] and data.rows[0]["contest_date"] == "2024-10-01"
    assert load_task_rows("livecodebench", DataSource(tmp_path)).sha256 != data.sha256
    with pytest.raises(
        ResetError, match=r"no LiveCodeBench problem from 2026-01-01 to the end: .*2024-09-30 to 2024-11"
    ):
        load_task_rows("livecodebench", DataSource(tmp_path, lcb=Selection.parse(None, "2026-01")))


def test_files_of_a_release(tmp_path) -> None:
    with pytest.raises(ResetError, match=r"no livecodebench\*\.jsonl in"):
        load_task_rows("livecodebench", DataSource(tmp_path))
    write(tmp_path, row("a"), name="livecodebench_v5.jsonl")
    write(tmp_path, row("b"), name="livecodebench_v6.jsonl")

    def ids(release):
        return [r["doc_id"] for r in load_task_rows("livecodebench", DataSource(tmp_path, lcb=Selection(release))).rows]

    assert ids(None) == ["a", "b"] == ids("v5_v6") and ids("v6") == ["b"]
    with pytest.raises(ResetError, match=r"livecodebench_v1\.jsonl is missing, which --lcb-release release_v6 asks"):
        ids("release_v6")


def test_content_decides_the_hash_and_not_its_wrapping(tmp_path) -> None:
    private = json.dumps([{"input": "5", "output": "6", "testtype": "stdin"}])
    wrapped = base64.b64encode(zlib.compress(pickle.dumps(private))).decode()
    (tmp_path / "x").mkdir()
    plain, _ = load_rows([write(tmp_path, row(private=private))], Selection()), None
    other = load_rows([write(tmp_path / "x", "", row(private=wrapped), name="livecodebench.jsonl")], Selection())
    assert plain[1] == other[1]
    assert [c.output for c in read_problem(plain[0][0]["place"]).cases] == ["2", "6"]
    assert read_problem(plain[0][0]["place"]) == read_problem(other[0][0]["place"])
    assert (other[0][0]["public"], other[0][0]["private"]) == (1, 1)
    changed = load_rows([write(tmp_path, row(private=private.replace("6", "7")))], Selection())
    assert changed[1] != plain[1]


HOSTILE = base64.b64encode(zlib.compress(b"cos\nsystem\n(S'true'\ntR.")).decode()


@pytest.mark.parametrize(
    "bad, words",
    [
        (
            row("p2", private=HOSTILE),
            r"line 2 \(problem p2\): 'private_test_cases' is refused: its pickle names the global os\.system",
        ),
        ("{", "line 2 is not valid JSON"),
        ("[]", "line 2 is not a JSON object"),
        (row("p1"), r"line 2 \(problem p1\): the id is already at .*line 1"),
        (row("p2", public=()), r"problem p2\): the row has no tests"),
        (row("p2", question_content=" "), "problem p2.*no 'question_content'"),
        (row(""), "line 2: the row has no 'question_id'"),
        (row("p2", "soon"), "'contest_date' 'soon' is no date"),
        (row("p2", contest_date=None), "no 'contest_date'"),
        (row("p2", public=({"input": "1", "output": "1", "testtype": "functional"},)), "need 'func_name'"),
        (
            row("p2", public=(CASE, {"input": "1", "output": "1", "testtype": "functional"})),
            "mixes stdin and functional",
        ),
        (row("p2", metadata="{"), "'metadata' is not valid JSON"),
        (row("p2", private=5), "neither a text nor a list"),
    ],
)
def test_bad_rows_are_named(tmp_path, bad, words) -> None:
    path = write(tmp_path, row("p1"), bad)
    with pytest.raises(ResetError, match=words) as caught:
        load_rows([path], Selection())
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_empty_and_changed_files(tmp_path) -> None:
    path = write(tmp_path)
    with pytest.raises(ResetError, match="is empty"):
        load_rows([path], Selection())
    place = load_rows([write(tmp_path, row())], Selection())[0][0]["place"]
    # Another line that could be read as well, at the same place: other tests, or those of another problem.
    for other in (row(public=({**CASE, "output": "3"},)), row("p2"), "x" * 2000, ""):
        write(tmp_path, other)
        with pytest.raises(ResetError, match="byte 0: the file changed after its rows were read"):
            read_problem(place)
    path.unlink()
    with pytest.raises(ResetError, match="cannot read"):
        read_problem(place)


def test_a_row_outside_the_window_is_not_decoded(tmp_path) -> None:
    path = write(tmp_path, row("p1"), row("p2", "2020-01-01", private=HOSTILE))
    assert len(load_rows([path], Selection.parse(None, "2024-01"))[0]) == 1
