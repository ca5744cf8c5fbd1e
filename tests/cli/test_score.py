"""``reset score`` and the listing of tasks as a user calls them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from simulated_runs import write_run

from resetcli.base.reporting import CollectingReporter
from resetcli.cli.score import score
from resetcli.evaluation.runs import read_samples

LINES = [
    {"text": "so \\boxed{033}", "target": "33"},
    {"text": "so maybe 33 é", "target": "33", "finish_reason": "length"},
    {"text": "It is \\boxed{9}.", "target": "33", "score": 1, "why": "correct"},
]


def test_a_file(reset, tmp_path) -> None:
    (tmp_path / "out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    ran = reset("score", "--task", "aime", "out.jsonl")
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in ran.out.splitlines()]
    wanted = [("33", 1, "correct"), (None, 0, "truncated"), ("9", 0, "wrong")]
    assert [(line["answer"], line["score"], line["why"]) for line in lines] == wanted
    assert [line["text"] for line in lines] == [line["text"] for line in LINES]
    assert "1 of 3 changed" in ran.err and "line 3: None (correct) -> 9 (wrong)" in ran.err
    ran = reset("score", "--task", "aime", "out.jsonl", "--json", "--quiet")
    found = json.loads(ran.out)
    assert ran.err == "" and found["samples"] == lines and [c["line"] for c in found["changed"]] == [3]
    assert found["tasks"]["aime"] == {
        "samples": 3, "correct": 1, "wrong": 1, "unparsed": 0, "truncated": 1, "mean": 1 / 3
    }  # fmt: skip


def test_a_run(reset, tiny_checkpoint, tmp_path) -> None:
    own = ("--tasks", "own", "--limit", 2, "--max-new-tokens", 4, "--tau0", 1, "--max-failed", 1, "--gzip")
    assert reset("eval", tiny_checkpoint, *own, "-o", "run").code == 0
    ran = reset("score", "run", "--json")
    found = json.loads(ran.out)
    assert ran.code == 0 and len(found["samples"]) == 2 and found["changed"] == []
    assert found["limited"] is True
    assert all({"doc_id", "repeat", "answer", "score", "why"} <= line.keys() for line in found["samples"])
    ran = reset("score", "run", "--update")
    assert ran.code == 0 and len(ran.out.splitlines()) == 2 and "has the new scores" in ran.err
    assert "limited to the first 2 documents of a task" in ran.err
    assert "is finished" in reset("eval", tiny_checkpoint, *own, "-o", "run").err


class Gone:
    """Standard output whose reader has gone, as ``head`` does after its lines."""

    def __init__(self, **options):
        self.reporter, self.unicode = CollectingReporter(), True
        outputs.append(self)

    def write(self, text):
        raise BrokenPipeError


outputs: list[Gone] = []


def test_an_update_does_not_wait_for_a_reader(tmp_path, monkeypatch) -> None:
    run = write_run(tmp_path / "run", {"aime": np.ones((2, 1))})
    path, header = run / "samples.jsonl", json.loads((run / "run.json").read_text())
    path.write_text(path.read_text().replace("a text", "<x>so</x> \\\\boxed{2}"))
    (run / "run.json").write_text(json.dumps({**header, "alt_answers": {}}))
    monkeypatch.setattr("resetcli.cli.score.Output", Gone)
    with pytest.raises(BrokenPipeError):
        score(target=run, update=True, thought_start="<x>", thought_end="</x>")
    assert [(s["answer"], s["why"]) for s in read_samples(run)] == [("2", "wrong")] * 2
    assert any(f"`reset eval` with them goes on with -o {run}" in line for line in outputs[-1].reporter.infos)


def test_calls_that_will_not_do(reset, tmp_path) -> None:
    (tmp_path / "out.jsonl").write_text(json.dumps(LINES[0]) + "\n{\n")
    for args, code, message in (
        (("out.jsonl",), 2, "needs --task NAME"),
        (("--task", "aimee", "out.jsonl"), 2, "did you mean aime"),
        (("--task", "aime", "--update", "out.jsonl"), 2, "--update goes with RUN"),
        (("--task", "aime", "nowhere.jsonl"), 1, "nowhere.jsonl is not there"),
        (("--task", "aime", "out.jsonl"), 1, "out.jsonl, line 2 is not JSON"),
        (("x" * 400,), 1, "is not there"),
        ((".",), 1, "holds no run.json"),
    ):
        ran = reset("score", *args)
        assert ran.code == code and message in ran.error and ran.out == "", (args, ran.err)


def test_the_tasks_are_listed(reset) -> None:
    ran = reset("eval", "--list-tasks")
    assert ran.code == 0 and "livecodebench" in ran.out and "paper" in ran.out
    found = json.loads(reset("eval", "--list-tasks", "--json").out)
    assert {"name": "gpqa", "kind": "letters"}.items() <= next(t for t in found["tasks"] if t["name"] == "gpqa").items()
    (paper,) = found["groups"]
    assert paper["tasks"] == ["aime", "gpqa", "livecodebench"] and paper["repeats"] == 8
    assert paper["top_p"] == 0.95 and paper["max_new_tokens"] == 32768


def test_the_papers_settings(reset, tiny_checkpoint, tmp_path) -> None:
    """What is not given is the paper's, what is given wins; programs need their own yes, before anything else."""
    for year in range(2022, 2026):
        row = {"id": f"{year}-I-1", "problem": "What is 1 + 1?", "answer": "2"}
        (tmp_path / f"aime_{year}.jsonl").write_text(json.dumps(row) + "\n")
    names = "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3,Record ID"
    (tmp_path / "gpqa_diamond.csv").write_text(f"{names}\nWhich?,this,that,those,these,rec0\n")
    tests = json.dumps([{"input": "1\n", "output": "1\n", "testtype": "stdin"}])
    program = {
        "question_id": "p1", "question_title": "Echo", "question_content": "Print it.", "platform": "atcoder",
        "contest_id": "c", "contest_date": "2024-10-19T00:00:00", "difficulty": "easy", "starter_code": "",
        "public_test_cases": tests, "private_test_cases": tests, "metadata": "{}",
    }  # fmt: skip
    (tmp_path / "livecodebench.jsonl").write_text(json.dumps(program) + "\n")
    args = ("eval", tiny_checkpoint, "--tasks", "paper", "--data-dir", ".", "--tau0", 1, "--limit", 1,
            "--max-failed", 1)  # fmt: skip
    ran = reset(*args, "-o", "run")
    assert ran.code == 2 and "--allow-code-execution" in ran.error and not (tmp_path / "run").exists()
    args = (*args, "--allow-code-execution", "--max-new-tokens", 3, "--json")
    for more, repeats, top_p in (((), 8, 0.95), (("--repeats", 1, "--top-p", 0.5), 1, 0.5)):
        ran = reset(*args, "-o", f"run{repeats}", *more)
        assert ran.code == 0, ran.err
        assert {name: task["repeats"] for name, task in json.loads(ran.out)["results"].items()} == dict.fromkeys(
            ("aime", "gpqa", "livecodebench"), repeats
        )
        sampling = json.loads((tmp_path / f"run{repeats}/run.json").read_text())["sampling"]
        assert sampling["max_new_tokens"] == 3 and {task["top_p"] for task in sampling["by_task"].values()} == {top_p}
