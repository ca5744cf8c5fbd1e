"""The task as a whole: the yes it needs, its prompts, and a run from prompt to score."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from evaluation_double import FIXED, SeededEngine

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import CollectingReporter
from resetcli.data.sources import DataSource
from resetcli.evaluation.evaluate import run_eval
from resetcli.evaluation.judge import Judge
from resetcli.evaluation.tasks import TASKS

SPEC = TASKS["livecodebench"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("lcb")
    rows = [
        {
            "question_id": "add",
            "question_content": "Print n + 1. {{braces}} stay.",
            "contest_date": "2025-01-01",
            "starter_code": "",
            "metadata": "{}",
            "private_test_cases": "[]",
            "public_test_cases": json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}]),
        },
        {
            "question_id": "rev",
            "question_content": "Reverse.",
            "contest_date": "2025-01-02",
            "starter_code": "class Solution:\n    def rev(self, s: str) -> str:\n        ",
            "metadata": '{"func_name": "rev"}',
            "private_test_cases": "[]",
            "public_test_cases": json.dumps([{"input": '"ab"', "output": '"ba"', "testtype": "functional"}]),
        },
    ]
    (path / "livecodebench.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


class Programmer(SeededEngine):
    """Answers "add" rightly and "rev" wrongly, with a fork bomb in repeat 1 of each."""

    def answer(self, request):
        done = super().answer(request)
        right = "```python\nn = int(input())\nprint(n + 1)\n```"
        text = (
            right
            if "/add/" in request.request_id
            else "```py\nclass Solution:\n    def rev(self, s):\n        return s\n```"
        )
        if request.request_id.endswith("/1"):
            text = "```python\nimport os\nwhile True: os.fork()\n```"
        return replace(done, text=f"<think>```python\n0\n```</think>{text}", finish_reason="stop")


def no_model():
    raise AssertionError("no model may be opened")


def test_without_a_yes_nothing_is_loaded(folder, tmp_path) -> None:
    with pytest.raises(UsageError, match=r"livecodebench runs programs .*--allow-code-execution"):
        run_eval(
            no_model, "livecodebench", DataSource(folder), FIXED, model="m", fingerprint="f", output=tmp_path / "r"
        )
    assert not (tmp_path / "r").exists()
    with pytest.raises(UsageError, match="--allow-code-execution"):
        Judge([SPEC], ("<think>", "</think>"))


def test_the_command_refuses_before_the_checkpoint(folder, capsys) -> None:
    from resetcli.cli import main

    code = main.main(["eval", "/nowhere", "--tasks", "livecodebench,gsm8k", "--data-dir", str(folder)])
    assert code == 2 and capsys.readouterr().err.startswith("error: scoring livecodebench runs programs")
    allowed = ["--allow-code-execution", "--lcb-from", "2026-01"]
    code = main.main(["eval", "/nowhere", "--tasks", "livecodebench", "--data-dir", str(folder), *allowed])
    assert code == 1 and "no LiveCodeBench problem from 2026-01-01" in capsys.readouterr().err
    code = main.main(["eval", "/nowhere", "--tasks", "livecodebench", "--lcb-release", "v9", "--allow-code-execution"])
    assert code == 2 and "unknown --lcb-release 'v9'" in capsys.readouterr().err


def test_a_run(folder, tiny_tokenizer, tmp_path) -> None:
    said = CollectingReporter()
    results = run_eval(
        lambda: Programmer(tiny_tokenizer),
        "livecodebench",
        DataSource(folder),
        FIXED,
        model="m",
        fingerprint="f" * 64,
        repeats=2,
        max_new_tokens=64,
        output=tmp_path / "r",
        allow_code=True,
        reporter=said,
    )
    task = results["results"]["livecodebench"]
    assert (task["n"], task["avg@k"], task["pass@k"], task["unparsed"]) == (2, 0.25, 0.5, 0.0)
    samples = [json.loads(line) for line in (tmp_path / "r" / "samples.jsonl").read_text().splitlines()]
    found = {(s["doc_id"], s["repeat"]): s for s in samples}
    assert found["add", 0]["answer"] == "passed the test" and found["add", 0]["target"] == "add"
    assert found["rev", 0]["answer"] == "test 1 of 1: wrong output" and found["rev", 0]["why"] == "wrong"
    assert found["add", 1]["why"] == found["rev", 1]["why"] == "wrong"
    assert any("public tests only" in line for line in said.warnings)
    header = json.loads((tmp_path / "r" / "run.json").read_text())
    assert header["tasks"]["livecodebench"]["selection"] == {"release": None, "from": None, "to": None}
    # finished: shown again without a model
    again = run_eval(
        no_model,
        "livecodebench",
        DataSource(folder),
        FIXED,
        model="m",
        fingerprint="f" * 64,
        repeats=2,
        max_new_tokens=64,
        output=tmp_path / "r",
        allow_code=True,
    )
    assert again["finished_before"] and again["results"]["livecodebench"]["avg@k"] == 0.25


def test_prompts(folder) -> None:
    from resetcli.evaluation.tasks.build import build_task

    task = build_task(SPEC, DataSource(folder), repeats=1, max_new_tokens=8)
    whole, function = (task.doc_to_text(doc) for doc in task.eval_docs)
    assert (
        whole.startswith("Print n + 1. {{braces}} stay.\n\nSolve")
        and "standard input" in whole
        and "class" not in whole
    )
    assert "```python\nclass Solution:\n    def rev(self, s: str) -> str:\n        \n```" in function
    assert "standard input" not in function
    for text in (whole, function):
        assert text.endswith("write the complete program in one ```python code block at the end.")
        assert "\n\n\n" not in text


def test_lm_evals_own_command_asks_too(folder, monkeypatch) -> None:
    from resetcli.evaluation.tasks.build import build_task

    task = build_task(SPEC, DataSource(folder), repeats=1, max_new_tokens=8)
    doc, text = task.eval_docs[0], "```python\nprint(int(input()) + 1)\n```"
    monkeypatch.delenv("RESET_ALLOW_CODE_EXECUTION", raising=False)
    with pytest.raises(ResetError, match="runs programs"):
        task.process_results(doc, [text])
    monkeypatch.setenv("RESET_ALLOW_CODE_EXECUTION", "1")
    assert task.process_results(doc, [text]) == {"exact_match": 1.0}
