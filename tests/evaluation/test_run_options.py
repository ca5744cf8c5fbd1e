"""Options of a run over the protocol double: documents by id, repeats raised, gzip, broken models, long paths."""

from __future__ import annotations

import gzip
import json
import re

import pytest
from evaluation_double import FIXED, SeededEngine

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import CollectingReporter
from resetcli.engines.protocol import Completion
from resetcli.evaluation.evaluate import run_eval
from resetcli.evaluation.runs import read_samples


def run(engine, source, output, tasks="aime,gpqa", **options):
    options = {"model": "double", "fingerprint": "f" * 64, "max_new_tokens": 20, **options}
    return run_eval(lambda: engine, tasks, source, FIXED, output=output, **options)


def results(path):
    return {k: v for k, v in json.loads((path / "results.json").read_text()).items() if k != "timing"}


def lines(path):
    return sorted(json.dumps(sample) for sample in read_samples(path))


def test_documents_by_id(tiny_tokenizer, source, tmp_path) -> None:
    """The samples are those that a whole run has of these documents; every output says that it is not whole."""
    ids = "2023-I-2, rec1,2022-I-4,"
    report = run(SeededEngine(tiny_tokenizer), source, tmp_path / "some", doc_ids=ids, repeats=2)
    run(SeededEngine(tiny_tokenizer), source, tmp_path / "all", repeats=2)
    named = ("2023-I-2", "rec1", "2022-I-4")
    whole = [s for s in read_samples(tmp_path / "all") if s["doc_id"] in named]
    assert lines(tmp_path / "some") == sorted(map(json.dumps, whole)) and len(whole) == 6
    found = results(tmp_path / "some")
    assert found["doc_ids"] == sorted(named) and found["limit"] is None and found["results"]["aime"]["n"] == 2
    assert found["results"]["gpqa"]["limited"] is True and found["n-samples"]["gpqa"]["effective"] == 1
    assert json.loads((tmp_path / "some/run.json").read_text())["limited"] is True
    theirs = json.loads((tmp_path / "some/results_lm-eval.json").read_text())["config"]
    assert theirs["doc_ids"] == sorted(named) and theirs["limited"] is True and theirs["limit"] is None
    from resetcli.cli.eval import render

    assert "limited to the documents 2022-I-4, 2023-I-2, rec1: not comparable with full runs" in render(report)
    again = run(SeededEngine(tiny_tokenizer), source, tmp_path / "some", doc_ids=reversed(named), repeats=2)
    assert again["finished_before"]  # the order of names makes no other run
    limited = run(SeededEngine(tiny_tokenizer), source, tmp_path / "one", tasks="aime", doc_ids=named[::2], limit=1)
    assert [s["doc_id"] for s in read_samples(tmp_path / "one")] == ["2022-I-4"]  # in the task's order
    assert "the first 1 documents of a task among the documents" in render(limited)


@pytest.mark.parametrize(
    ("ids", "message"),
    [("2022-I-1,rec9", "no document rec9 in aime, gpqa"), ("rec1", "names no document of aime; leave that task out"),
     (" , ", "--doc-ids names no document")],
)  # fmt: skip
def test_ids_that_are_not_there(source, tmp_path, ids, message) -> None:
    with pytest.raises(UsageError, match=message):
        run(None, source, tmp_path / "run", doc_ids=ids)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("packed", [False, True])
def test_repeats_raised_later_add_what_is_missing(tiny_tokenizer, source, tmp_path, packed) -> None:
    """A finished run of two repeats, then four, killed on the way: the samples of a run that began with four."""
    whole = run(SeededEngine(tiny_tokenizer), source, tmp_path / "whole", repeats=4, limit=3)
    engine = SeededEngine(tiny_tokenizer)
    run(engine, source, tmp_path / "run", repeats=2, limit=3, packed=packed)
    with pytest.raises(KeyboardInterrupt):
        run(SeededEngine(tiny_tokenizer, die_after=4, batch=2), source, tmp_path / "run", repeats=4, limit=3)
    # Two repeats' results, and what was made of them, no longer stand for the samples.
    assert not {"results.json", "report.html", "results_lm-eval.json"} & {p.name for p in (tmp_path / "run").iterdir()}
    more = SeededEngine(tiny_tokenizer)
    report = run(more, source, tmp_path / "run", repeats=4, limit=3)
    assert len(engine.requests) == 12 and len(more.requests) == 24 - 12 - 4
    assert lines(tmp_path / "whole") == lines(tmp_path / "run") and report["results"] == whole["results"]
    assert json.dumps(results(tmp_path / "whole")) == json.dumps(results(tmp_path / "run"))
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("whole", "run")]
    assert records[0]["repeats"] == records[1]["repeats"] == 4 and records[0]["settings"] == records[1]["settings"]
    with pytest.raises(ResetError, match=r"other settings: repeats \(4, now 3: they can be raised only\)"):
        run(None, source, tmp_path / "run", repeats=3, limit=3)


def test_the_default_folder_is_the_same_for_more_repeats(tiny_tokenizer, source, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = run(SeededEngine(tiny_tokenizer), source, None, tasks="own", limit=1)
    more = run(SeededEngine(tiny_tokenizer), source, None, tasks="own", limit=1, repeats=3)
    assert first["run"] == more["run"] and more["results"]["own"]["repeats"] == 3


def test_runs_that_kept_repeats_among_the_settings(tiny_tokenizer, source, tmp_path) -> None:
    """As earlier versions did."""
    run(SeededEngine(tiny_tokenizer), source, tmp_path / "run", tasks="own", limit=2, repeats=2)
    record = json.loads((tmp_path / "run/run.json").read_text())
    record["settings"]["repeats"] = record.pop("repeats")
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    assert run(None, source, tmp_path / "run", tasks="own", limit=2, repeats=2)["finished_before"]
    with pytest.raises(ResetError, match=r"repeats \(2, now 1"):
        run(None, source, tmp_path / "run", tasks="own", limit=2)
    run(SeededEngine(tiny_tokenizer), source, tmp_path / "run", tasks="own", limit=2, repeats=3)
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["repeats"] == 3 and "repeats" not in record["settings"]


def test_gzip_holds_the_same_samples(tiny_tokenizer, source, tmp_path) -> None:
    """Killed with a torn member at the end; any reader of gzip files sees the same lines."""
    run(SeededEngine(tiny_tokenizer), source, tmp_path / "plain", repeats=2, limit=3)
    for after in (3, 2):
        with pytest.raises(KeyboardInterrupt):
            run(SeededEngine(tiny_tokenizer, die_after=after, batch=2), source, tmp_path / "run", repeats=2, limit=3,
                packed=True)  # fmt: skip
        path = tmp_path / "run/samples.jsonl.gz"
        path.write_bytes(path.read_bytes() + path.read_bytes()[: 40 * after])
    run(SeededEngine(tiny_tokenizer), source, tmp_path / "run", repeats=2, limit=3)  # goes on in the file it has
    assert not (tmp_path / "run/samples.jsonl").exists()
    plain = (tmp_path / "plain/samples.jsonl").read_bytes()
    assert sorted(gzip.decompress(path.read_bytes()).split(b"\n")) == sorted(plain.split(b"\n"))
    assert json.dumps(results(tmp_path / "plain")) == json.dumps(results(tmp_path / "run"))
    (tmp_path / "run/samples.jsonl").write_bytes(b"")
    with pytest.raises(ResetError, match=r"has both samples\.jsonl and samples\.jsonl\.gz"):
        run(None, source, tmp_path / "run", repeats=2, limit=3)


def test_the_exact_prompt_is_kept(tiny_tokenizer, source, tmp_path) -> None:
    engine = SeededEngine(tiny_tokenizer)
    run(engine, source, tmp_path / "run", tasks="aime22", limit=1)
    (sample,) = read_samples(tmp_path / "run")
    assert sample["prompt"] == tiny_tokenizer.decode(engine.requests[0].prompt_ids)


def test_samples_without_prompts_go_on(tiny_tokenizer, source, tmp_path) -> None:
    """Earlier versions kept the hash only."""
    whole = run(SeededEngine(tiny_tokenizer), source, tmp_path / "run", tasks="own", limit=3)
    path = tmp_path / "run/samples.jsonl"
    kept = [json.loads(line) for line in path.read_text().split("\n")[:2]]
    path.write_text("".join(json.dumps({k: v for k, v in s.items() if k != "prompt"}) + "\n" for s in kept))
    engine = SeededEngine(tiny_tokenizer)
    again = run(engine, source, tmp_path / "run", tasks="own", limit=3)
    assert len(engine.requests) == 1 and again["results"] == whole["results"]


class Mute(SeededEngine):
    """``mute`` of ten answers have nothing but white space in them."""

    def __init__(self, tokenizer, mute, **more):
        super().__init__(tokenizer, **more)
        self.mute = mute

    def answer(self, request):
        done = super().answer(request)
        if request.seed % 10 < self.mute:
            return Completion(request.request_id, [0] * 2, " \n", "stop", len(request.prompt_ids), 0.1)
        return done


def test_a_model_that_says_nothing_ends_the_run(tiny_tokenizer, source, tmp_path) -> None:
    engine = Mute(tiny_tokenizer, 10)
    with pytest.raises(ResetError) as error:
        run(engine, source, tmp_path / "run", repeats=4)
    made = len(list(read_samples(tmp_path / "run")))
    assert made == len(engine.requests) == 20 < 76 and engine.closed
    assert re.search(
        r"is ended: of 20 samples made, 20 are empty, more than --max-failed 0\.25 of its 76 allows", str(error.value)
    )
    assert error.value.exit_code == 1 and not (tmp_path / "run/results.json").exists()
    report = run(engine, source, tmp_path / "run", repeats=4, max_failed=1.0)
    assert report["exit_code"] == 0 and report["results"]["aime"]["empty"] == 64
    from resetcli.cli.eval import render

    assert "aime: 64 of 64 samples have no text" in render(report)
    again = run(None, source, tmp_path / "run", repeats=4)  # finished, and still not to be relied on
    assert again["exit_code"] == 1 and again["finished_before"]
    assert again["error"].startswith("of 76 samples made, 76 are empty, more than --max-failed 0.25 of the run allows")


def test_some_empty_answers_are_counted(tiny_tokenizer, source, tmp_path) -> None:
    report = run(Mute(tiny_tokenizer, 1), source, tmp_path / "run", repeats=4)
    empty = sum(not s["text"].strip() for s in read_samples(tmp_path / "run"))
    assert 0 < empty < 19 and report["exit_code"] == 0
    assert sum(task["empty"] for task in report["results"].values()) == empty
    assert {s["why"] for s in read_samples(tmp_path / "run") if not s["text"].strip()} == {"unparsed"}


def test_logits_that_are_not_finite_end_a_long_run(tiny_tokenizer, source, tmp_path) -> None:
    broken = tuple(f"aime/202{y}-I-{i}/{r}" for y in range(2, 6) for i in range(1, 5) for r in range(4))
    engine = SeededEngine(tiny_tokenizer, broken=broken)
    with pytest.raises(ResetError, match="20 failed, as their logits were not finite, more than --max-failed 0.25"):
        run(engine, source, tmp_path / "run", repeats=4)
    assert len(engine.requests) == 20
    whole = run(SeededEngine(tiny_tokenizer), source, tmp_path / "run", repeats=4)  # mended: they are made again
    assert whole["exit_code"] == 0 and whole["failed"] == 0


def test_a_share_that_is_none(source, tmp_path) -> None:
    for share in (-0.1, 1.5, float("nan")):
        with pytest.raises(UsageError, match="--max-failed must be a share from 0 to 1"):
            run(None, source, tmp_path / "run", max_failed=share)


def test_paths_of_three_hundred_characters(tiny_tokenizer, source, tmp_path) -> None:
    deep = tmp_path / ("d" * 140) / ("e" * 140) / ("f" * 100)
    run(SeededEngine(tiny_tokenizer), source, deep, tasks="own", limit=2, packed=True)
    assert run(None, source, deep, tasks="own", limit=2)["finished_before"] and len(str(deep)) > 300
    from resetcli.evaluation.rescore import rescore_run

    assert not rescore_run(deep).changed


def test_what_an_undisturbed_run_says(tiny_tokenizer, source, tmp_path) -> None:
    reporter = CollectingReporter()
    run(SeededEngine(tiny_tokenizer), source, tmp_path / "run", tasks="own", limit=2, reporter=reporter)
    timing = json.loads((tmp_path / "run/results.json").read_text())["timing"]
    assert 0 < timing["bookkeeping_seconds"] < timing["seconds"] and not reporter.warnings
