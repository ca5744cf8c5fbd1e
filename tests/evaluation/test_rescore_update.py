"""`reset score --update`: new verdicts on the right samples, and after any accident the same call finishes."""

from __future__ import annotations

import errno
import json
import os

import pytest
from double_runs import made, spoil
from evaluation_double import SeededEngine

from resetcli.base.errors import ResetError, UsageError
from resetcli.evaluation import rescore_update
from resetcli.evaluation.compare import compare_runs
from resetcli.evaluation.rescore import rescore_run
from resetcli.evaluation.runs import RunFolder, read_samples

OTHER = ("So", "</So>")


@pytest.fixture()
def run(tiny_tokenizer, source, tmp_path):
    made(tiny_tokenizer, source, tmp_path / "run")
    return tmp_path / "run"


def contents(run):
    return {p.name: p.read_bytes() for p in run.iterdir() if p.is_file()}


def header(run):
    return json.loads((run / "run.json").read_text())


def change_header(run, section, **values):
    found = header(run)
    (found[section] if section else found).update(values)
    (run / "run.json").write_text(json.dumps(found))


def verdicts(run):
    return {(s["task"], s["doc_id"], s["repeat"]): s["why"] for s in read_samples(run)}


def killed(monkeypatch, owner, name, call=1):
    """``owner.name`` is interrupted when it is called for the n-th time."""
    plain, calls = getattr(owner, name), []

    def dying(*args, **more):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return plain(*args, **more)

    monkeypatch.setattr(owner, name, dying)


def test_an_updated_run_goes_on(tiny_tokenizer, source, run, tmp_path) -> None:
    spoil(run)
    rescore_run(run).update()
    again = made(tiny_tokenizer, source, run)
    assert again["finished_before"] and again["exit_code"] == 0


def test_other_markers_change_what_is_read(tiny_tokenizer, source, tmp_path) -> None:
    made(tiny_tokenizer, source, tmp_path / "run", tasks="own", limit=5)
    found = rescore_run(tmp_path / "run", markers=("So", "</So>"))
    assert found.changed and all(entry["after"]["why"] != "correct" for entry in found.changed)
    before = json.loads((tmp_path / "run/results.json").read_text())["results"]["own"]["avg@k"]
    with pytest.raises(UsageError, match="leave --task out"):
        rescore_run(tmp_path / "run", task="own", markers=("So", "</So>")).update()
    found.update()
    again = made(tiny_tokenizer, source, tmp_path / "run", tasks="own", limit=5, think_markers=("So", "</So>"))
    assert again["finished_before"] and again["results"]["own"]["avg@k"] == 0 < before
    with pytest.raises(ResetError, match="think_markers"):
        made(tiny_tokenizer, source, tmp_path / "run", tasks="own", limit=5)


def test_samples_that_were_made_again_meanwhile_get_no_verdict(tiny_tokenizer, source, tmp_path) -> None:
    """As many lines as before, in another order: `reset eval` makes those that failed again, at the end."""
    run = tmp_path / "run"
    made(tiny_tokenizer, source, run, SeededEngine(tiny_tokenizer, broken=("aime/2022-I-2/0",)))
    found, part = rescore_run(run), rescore_run(run, task="gpqa")
    made(tiny_tokenizer, source, run)
    before = contents(run)
    for stale in (found, part):
        with pytest.raises(ResetError, match="was written to while it was scored; score it again"):
            stale.update()
        with pytest.raises(ResetError, match="was written to while it was scored"):
            list(stale.lines())
    assert contents(run) == before


def test_settings_that_changed_meanwhile_are_refused(run) -> None:
    """Verdicts by the former markers have no place under another update's."""
    found = rescore_run(run)
    rescore_run(run, markers=OTHER).update()
    before = contents(run)
    with pytest.raises(ResetError, match="think_markers"):
        found.update()
    assert contents(run) == before


@pytest.mark.parametrize("call", [1, 2])
def test_killed_with_other_markers_it_is_refused_until_it_is_finished(
    tiny_tokenizer, source, run, monkeypatch, call
) -> None:
    """Before the samples are replaced, and after."""
    samples = (run / "samples.jsonl").read_bytes()
    found = rescore_run(run, markers=OTHER)
    amend = RunFolder.amend

    def dying(self, new):
        if call == 1 or "rescoring" in new:
            amend(self, new)
        if call == 1 or "rescoring" not in new:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "amend", dying)
    with pytest.raises(KeyboardInterrupt):
        found.update()
    monkeypatch.undo()
    assert ((run / "samples.jsonl").read_bytes() == samples) is (call == 1)
    for markers in (("<think>", "</think>"), OTHER):
        with pytest.raises(ResetError, match=r"`reset score .*run --update` finishes it"):
            made(tiny_tokenizer, source, run, think_markers=markers)
    made(tiny_tokenizer, source, run.parent / "b")
    with pytest.raises(ResetError, match=r"--update` finishes it"):
        compare_runs([run, run.parent / "b"])
    with pytest.raises(UsageError, match="leave --task out"):
        rescore_run(run, task="gpqa").update()
    rescore_run(run).update()
    assert set(verdicts(run).values()) <= {"truncated", "unparsed"} and "rescoring" not in header(run)
    again = made(tiny_tokenizer, source, run, think_markers=OTHER)
    assert again["finished_before"] and again["results"]["aime"]["avg@k"] == 0


def test_a_full_disk_leaves_all_as_it_was(run, monkeypatch) -> None:
    before = contents(run)
    found = rescore_run(run, markers=OTHER)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResetError, match="No space left"):
        found.update()
    monkeypatch.undo()
    assert contents(run) == before


@pytest.mark.parametrize("place", ["task_statistics", "publish_report"])
def test_killed_after_the_samples_it_is_finished_by_the_same_call(
    tiny_tokenizer, source, run, monkeypatch, place
) -> None:
    good = json.loads((run / "results.json").read_text())["results"]
    spoil(run)
    found = rescore_run(run)
    killed(monkeypatch, rescore_update, place)
    with pytest.raises(KeyboardInterrupt):
        found.update()
    monkeypatch.undo()
    (run / "report.html").write_text("of the old scores")
    found = rescore_run(run)
    assert not found.changed
    found.update()
    results = json.loads((run / "results.json").read_text())["results"]
    assert all(results[task][key] == good[task][key] for task in good for key in ("avg@k", "ci95", "maj@k", "n"))
    assert "All 38 samples" in (run / "report.html").read_text()
    assert made(tiny_tokenizer, source, run)["finished_before"]


@pytest.mark.parametrize(
    "text",
    ['{"results": {"aime": 3, "gpqa": {}}, "timing": {}}', '{"results": {"aime": 3}}', '{"results": 3}', "[]", "oops"],
)
def test_results_that_are_none_of_this_run_go(run, text) -> None:
    (run / "results.json").write_text(text)
    spoil(run)
    rescore_run(run).update()
    assert "correct" in verdicts(run).values()
    assert not {"results.json", "report.html", "results_lm-eval.json"} & contents(run).keys()


def test_results_of_samples_that_are_missing_go(run) -> None:
    path = run / "samples.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    rescore_run(run).update()
    assert not (run / "results.json").exists()


def test_the_version_that_scored_all_tasks_is_kept(tiny_tokenizer, source, run) -> None:
    """So that what a comparison advises makes its warning go."""
    made(tiny_tokenizer, source, run.parent / "b")
    change_header(run, "conditions", versions={"resetcli": "0.0.1"})

    def warned():
        return [w for w in compare_runs([run, run.parent / "b"])["warnings"] if "scored by other versions: 0.0.1" in w]

    assert "`score RUN --update`" in warned()[0]
    rescore_run(run, task="aime").update()
    assert warned()
    rescore_run(run).update()
    assert not warned() and header(run)["conditions"]["versions"] == {"resetcli": "0.0.1"}
