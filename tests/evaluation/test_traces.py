"""Which samples of a run are traced, and what is left of a trace that cannot be written."""

from __future__ import annotations

import json

from evaluation_double import FIXED

from resetcli.base.reporting import CollectingReporter
from resetcli.engines.protocol import TokenEvent
from resetcli.evaluation.jobs import Job
from resetcli.evaluation.traces import ExampleTraces, trace_path


def job(task, doc, repeat=0):
    return Job(task, doc, repeat, 0, "p", (1,), 9, (), {}, False, True)


def requests(*jobs):
    return [(f"{j.task}/{j.doc_id}/{j.repeat}", j) for j in jobs]


def token(name, t):
    return TokenEvent(name, t, 7, "é", 0.5, *[None] * 6, 0.6, -1.0)


def traces(folder, reporter=None):
    return ExampleTraces(
        folder, {"aime": FIXED, "gpqa": FIXED}, model="m", seed=3, reporter=reporter or CollectingReporter()
    )


def test_the_first_of_each_task_is_watched_and_kept(tmp_path) -> None:
    found = traces(tmp_path)
    jobs = [job("aime", "a"), job("aime", "b"), job("gpqa", "x", 1), job("gpqa", "x", 2)]
    found.choose(requests(*jobs))
    assert found.names == {"aime/a/0", "gpqa/x/1"}
    for t in range(3):
        for name, _ in requests(*jobs):
            found.on_token(token(name, t))
    assert not (tmp_path / "traces").exists()
    for done in reversed(jobs):
        found.finished(done)
    assert sorted(p.name for p in (tmp_path / "traces").iterdir()) == ["aime.jsonl", "gpqa.jsonl"]
    header, *lines = map(json.loads, trace_path(tmp_path, "aime").read_text().splitlines())
    assert header == {"trace": 1, "policy": FIXED.header(), "model": "m", "seed": 3}
    assert [(line["request"], line["t"], line["text"]) for line in lines] == [("aime/a/0", t, "é") for t in range(3)]


def test_a_task_with_a_trace_gets_another_only_of_the_same_sample(tmp_path) -> None:
    first = traces(tmp_path)
    first.choose(requests(job("aime", "a")))
    first.on_token(token("aime/a/0", 0))
    first.finished(job("aime", "a"))
    later, again = traces(tmp_path), traces(tmp_path)
    later.choose(requests(job("aime", "b"), job("gpqa", "x")))
    again.choose(requests(job("aime", "b"), job("aime", "a")))
    assert later.names == {"gpqa/x/0"} and again.names == {"aime/a/0"}
    trace_path(tmp_path, "aime").write_text("torn")
    torn = traces(tmp_path)
    torn.choose(requests(job("aime", "b")))
    assert torn.names == {"aime/b/0"}


def test_a_failed_sample_leaves_none_and_a_full_disk_is_a_warning(tmp_path) -> None:
    reporter = CollectingReporter()
    found = traces(tmp_path, reporter)
    found.choose(requests(job("aime", "a"), job("gpqa", "x")))
    found.finished(job("aime", "a"))
    found.on_token(token("gpqa/x/0", 0))
    (tmp_path / "traces").write_text("a file in the way")
    found.finished(job("gpqa", "x"))
    assert len(reporter.warnings) == 1 and "trace of gpqa/x/0 is not kept: cannot write" in reporter.warnings[0]
