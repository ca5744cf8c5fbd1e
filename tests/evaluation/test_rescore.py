"""`reset score` over finished runs of the double, and over files: same verdicts as the run, changes listed."""

from __future__ import annotations

import gzip
import json
import os

import pytest
from double_runs import made, spoil
from evaluation_double import FIXED, SeededEngine

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import CollectingReporter
from resetcli.data.sources import DataSource
from resetcli.evaluation.evaluate import run_eval
from resetcli.evaluation.rescore import rescore_file, rescore_run
from resetcli.evaluation.runs import read_samples


@pytest.fixture()
def run(tiny_tokenizer, source, tmp_path):
    made(tiny_tokenizer, source, tmp_path / "run")
    return tmp_path / "run"


def no_data(tmp_path):
    """A data source in which nothing can be found: what a run records must do."""
    (tmp_path / "none").mkdir(exist_ok=True)
    return DataSource(tmp_path / "none")


def test_a_run_scores_as_it_did(run, tmp_path) -> None:
    """Alternative keys included, without the data: run.json records them."""
    before = {p.name: p.read_bytes() for p in run.iterdir() if p.is_file()}
    found = rescore_run(run, source=no_data(tmp_path))
    samples = list(read_samples(run))
    assert found.changed == [] and len(found.scores) == len(samples) == 16 * 2 + 3 * 2
    for line, sample in zip(found.lines(), samples, strict=True):
        assert line == {k: v for k, v in sample.items() if k not in ("text", "prompt")}
    assert {p.name: p.read_bytes() for p in run.iterdir() if p.is_file()} == before
    assert any(
        s["doc_id"].endswith("-I-1") and s["answer"] == "9" and s["score"] == 1 for s in samples
    )  # by alt_answers
    summary = found.summary()
    results = json.loads((run / "results.json").read_text())["results"]
    for task in ("aime", "gpqa"):
        assert summary[task]["mean"] == pytest.approx(results[task]["avg@k"], abs=1e-12)
        assert sum(v for k, v in summary[task].items() if k not in ("samples", "mean")) == summary[task]["samples"]


def test_what_changes_is_listed_and_update_puts_it_in(run, tmp_path) -> None:
    good = {name: (run / name).read_bytes() for name in ("samples.jsonl", "results.json")}
    at, key, verdict = spoil(run)
    found = rescore_run(run, source=no_data(tmp_path))
    assert found.changed == [{**key, "before": {"answer": "nonsense", "score": 0, "why": "wrong"}, "after": verdict}]
    assert list(found.lines())[at]["why"] == "correct"
    found.update()
    assert (run / "samples.jsonl").read_bytes() == good["samples.jsonl"]
    new, old = json.loads((run / "results.json").read_text()), json.loads(good["results.json"])
    assert new.pop("timing")["scored_again"] and old.pop("timing")
    for task, values in old["results"].items():
        assert new["results"][task].keys() == values.keys()
        for name, value in values.items():
            close = isinstance(value, float) and name.startswith("exact_match")
            assert new["results"][task][name] == (pytest.approx(value, abs=1e-12) if close else value), name
    assert rescore_run(run, source=no_data(tmp_path)).changed == []
    assert "results_lm-eval.json" not in os.listdir(run)


def test_one_task_of_a_run(run) -> None:
    spoil(run)
    found = rescore_run(run, task="gpqa")
    assert list(found.tasks) == ["gpqa"] and not found.changed and len(list(found.lines())) == 6
    with pytest.raises(UsageError, match="has no task math500"):
        rescore_run(run, task="math500")


def test_a_thought_that_the_prompt_opened(run) -> None:
    """The prompt kept with each sample decides, as it did in the run."""
    path = run / "samples.jsonl"
    lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    for line in lines:
        line["prompt"] += "<think>\n"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert {line["why"] for line in rescore_run(run).lines()} == {"unparsed", "truncated"}


def test_runs_of_older_versions(run, source, tmp_path) -> None:
    """No prompts, no alternative keys in run.json: the data is asked, and must be the run's."""
    path, header = run / "samples.jsonl", json.loads((run / "run.json").read_text())
    lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    path.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "prompt"}) + "\n" for line in lines))
    del header["alt_answers"]
    (run / "run.json").write_text(json.dumps(header))
    reporter = CollectingReporter()
    assert rescore_run(run, source=source, reporter=reporter).changed == []
    assert [line for line in reporter.warnings if "kept no prompts" in line]
    with pytest.raises(ResetError, match=r"aime_2022\.jsonl is missing"):
        rescore_run(run, source=no_data(tmp_path))
    from evaluation_data import write_data

    other = write_data(tmp_path / "other")
    (other / "aime_2022.jsonl").write_text((other / "aime_2022.jsonl").read_text().replace("plus 2", "plus 3"))
    with pytest.raises(ResetError, match="the data of task aime is not that of the run"):
        rescore_run(run, source=DataSource(other))


def test_gzip_runs_and_unfinished_ones(tiny_tokenizer, source, tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_eval(lambda: SeededEngine(tiny_tokenizer, die_after=4, batch=2), "aime,wikitext", source, FIXED,
                 model="d", fingerprint="f", output=tmp_path / "run", packed=True, max_new_tokens=20)  # fmt: skip
    found = rescore_run(tmp_path / "run")
    assert not found.changed and found.summary()["aime"]["samples"] == 4
    found.update()
    assert not (tmp_path / "run/results.json").exists() and len(list(read_samples(tmp_path / "run"))) == 4


def test_a_run_that_grows_meanwhile(run) -> None:
    path = run / "samples.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))
    found = rescore_run(run)
    path.write_text("".join(lines))
    assert len(list(found.lines())) == 2


@pytest.mark.parametrize(
    ("section", "value"),
    [("model", 7), ("engine", []), ("alt_answers", {"aime": 3}), ("alt_answers", 7), ("think_markers", "x"),
     ("think_markers", [1, 2]), ("doc_ids", 7)],
)  # fmt: skip
def test_an_edited_header_is_named(run, section, value) -> None:
    header = json.loads((run / "run.json").read_text())
    (header["settings"] if section in header["settings"] else header)[section] = value
    (run / "run.json").write_text(json.dumps(header))
    with pytest.raises(ResetError, match=r"run\.json is not the record of a run"):
        rescore_run(run)


def test_no_runs(tmp_path, tiny_tokenizer, source) -> None:
    with pytest.raises(ResetError, match=r"holds no run\.json"):
        rescore_run(tmp_path)
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(ResetError, match="not the record of a run"):
        rescore_run(tmp_path)
    made(tiny_tokenizer, source, tmp_path / "w", tasks="wikitext", repeats=1)
    with pytest.raises(UsageError, match="no task with answers to score"):
        rescore_run(tmp_path / "w")


LINES = [
    {"text": r"so \boxed{033}", "target": "33"},
    {"text": r"maybe \boxed{33}", "target": 33, "finish_reason": "length", "id": "kept"},
    {"text": "so maybe 33", "target": "33", "finish_reason": "length"},
    {"text": r"It is \boxed{7}.", "target": "8", "alt_answers": ["7"], "finish_reason": None},
    {"text": r"\boxed{7}", "target": "7", "prompt": "Q <think>\n"},
    {"text": "no idea \u2028", "target": "1", "score": 1},
]


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_a_file_of_outputs(tmp_path, name) -> None:
    """Lines come back whole and in order; what a line said before counts as its former verdict."""
    path = tmp_path / name
    text = ("\n\n".join(json.dumps(line, ensure_ascii=False) for line in LINES)).encode()  # no end on the last line
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    found = rescore_file(path, "aime")
    lines = list(found.lines())
    assert [{k: v for k, v in line.items() if k in was} for line, was in zip(lines, LINES, strict=True)][:5] == LINES[
        :5
    ]
    assert [(line["answer"], line["score"], line["why"]) for line in lines] == [
        ("33", 1, "correct"), (None, 0, "truncated"), (None, 0, "truncated"), ("7", 1, "correct"),
        (None, 0, "unparsed"), (None, 0, "unparsed"),
    ]  # fmt: skip
    assert found.changed == [
        {"line": 11, "before": {"score": 1}, "after": {"answer": None, "score": 0, "why": "unparsed"}}
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{oops}", "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ('{"target": "C"}', "line 2 has no 'text'"),
        ('{"text": "C"}', "line 2 has no 'target'"),
        ('{"text": "C", "target": " "}', "line 2 has no 'target'"),
        ('{"text": "C", "target": "E"}', "line 2: 'target' of task gpqa must be A, B, C or D"),
        ('{"text": "C", "target": "C", "finish_reason": "eos"}', "line 2: 'finish_reason' must be stop or length"),
        ('{"text": "C", "target": "C", "alt_answers": [1]}', "line 2: 'alt_answers' must be a list of texts"),
        ('{"text": "C", "target": "C", "prompt": 1}', "line 2: 'prompt' must be a text"),
    ],
)
def test_lines_that_will_not_do_are_named(tmp_path, line, message) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"text": "C", "target": "C"}\n' + line + "\n")
    with pytest.raises(ResetError, match=message) as error:
        rescore_file(path, "gpqa")
    assert str(path) in str(error.value)


def test_files_and_tasks_that_will_not_do(tmp_path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("\n")
    with pytest.raises(ResetError, match="is empty"):
        rescore_file(path, "aime")
    with pytest.raises(UsageError, match="did you mean aime"):
        rescore_file(path, "aimee")
    with pytest.raises(UsageError, match="one task"):
        rescore_file(path, "aime,gpqa")
    with pytest.raises(UsageError, match="one task"):
        rescore_file(path, "paper")
    with pytest.raises(UsageError, match="perplexities"):
        rescore_file(path, "wikitext")
    with pytest.raises(ResetError, match="cannot read"):
        rescore_file(tmp_path / "none", "aime")
    path.write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(ResetError, match="line 1 is not JSON"):
        rescore_file(path, "aime")


def test_programs_need_a_yes_and_a_document(tmp_path, shared_data) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps({"text": "none", "doc_id": "nowhere"}) + "\n")
    with pytest.raises(UsageError, match="--allow-code-execution"):
        rescore_file(path, "livecodebench", source=DataSource(shared_data))
    with pytest.raises(ResetError, match="line 1: 'doc_id' must name a document of task livecodebench, not 'nowhere'"):
        rescore_file(path, "livecodebench", source=DataSource(shared_data), allow_code=True)
    from resetcli.data.sources import load_task_rows

    doc = load_task_rows("livecodebench", DataSource(shared_data)).rows[0]["doc_id"]
    path.write_text(
        "".join(json.dumps({"text": t, "doc_id": doc}) + "\n" for t in ("none", "```python\nprint('no')\n```"))
    )
    found = rescore_file(path, "livecodebench", source=DataSource(shared_data), allow_code=True)
    assert [line["why"] for line in found.lines()] == ["unparsed", "wrong"]
