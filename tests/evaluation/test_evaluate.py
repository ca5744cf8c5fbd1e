"""Whole runs over a protocol double: contract, resuming, refusals. The double's answers depend on the seeds alone."""

from __future__ import annotations

import itertools
import json
import math
import re

import pytest
from evaluation_data import write_data
from evaluation_double import FIXED, SeededEngine

from resetcli.base.errors import ResetError, UsageError
from resetcli.base.reporting import CollectingReporter
from resetcli.base.seeds import sample_seed
from resetcli.data.sources import DataSource
from resetcli.evaluation.evaluate import run_eval
from resetcli.evaluation.runs import SAMPLE_KEYS, read_samples
from resetcli.evaluation.scoring.score import score_output
from resetcli.evaluation.statistics import task_statistics
from resetcli.policy.settings import PolicySettings


def run(engine, source, output, tasks="aime,gpqa", settings=FIXED, **options):
    options = {"model": "double", "fingerprint": "f" * 64, "max_new_tokens": 20, **options}
    return run_eval(lambda: engine, tasks, source, settings, output=output, **options)


def without_timing(path):
    return {k: v for k, v in json.loads((path / "results.json").read_text()).items() if k != "timing"}


def test_a_run_keeps_the_contract(tiny_tokenizer, source, tmp_path) -> None:
    engine, reporter = SeededEngine(tiny_tokenizer), CollectingReporter()
    report = run(engine, source, tmp_path / "run", repeats=4, limit=2, seed=5, reporter=reporter)
    samples = list(read_samples(tmp_path / "run"))
    assert len(samples) == 2 * 2 * 4 and all(tuple(s) == SAMPLE_KEYS for s in samples)
    assert {(s["task"], s["doc_id"]) for s in samples} == {
        ("aime", "2022-I-1"), ("aime", "2022-I-2"), ("gpqa", "rec0"), ("gpqa", "rec1")
    }  # fmt: skip
    by_id = {r.request_id: r for r in engine.requests}
    for s in samples:
        assert s["seed"] == sample_seed(5, s["task"], s["doc_id"], s["repeat"])
        done = engine.answer(by_id[f"{s['task']}/{s['doc_id']}/{s['repeat']}"])
        assert (s["text"], s["n_tokens"], s["finish_reason"]) == (done.text, done.n_tokens, done.finish_reason)
        kind = "letters" if s["task"] == "gpqa" else "math"
        score = score_output(kind, s["text"], s["target"], s["finish_reason"],
                             alt_answers=["9"] if s["doc_id"] == "2022-I-1" else [])  # fmt: skip
        assert (s["answer"], s["score"], s["why"]) == (score.answer, score.score, score.why)
    results = json.loads((tmp_path / "run/results.json").read_text())
    for task in ("aime", "gpqa"):
        found = results["results"][task]
        own = task_statistics([s for s in samples if s["task"] == task], 4)
        assert {k: found[k] for k in own} == own
        assert found["exact_match,score"] == pytest.approx(found["avg@k"], abs=1e-12) and found["limited"] is True
    assert results["n-samples"]["aime"] == {"original": 16, "effective": 2}
    assert {k: v for k, v in report.items() if k in results} == results
    assert report["exit_code"] == 0 and report["run"] == str(tmp_path / "run") and engine.closed
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["model"]["fingerprint"] == "f" * 64 and record["policy"] == FIXED.header() and record["seed"] == 5
    assert record["batch_invariant"] is True and record["limited"] is True
    assert record["tasks"]["aime"]["version"] == 1 and len(record["tasks"]["aime"]["data_sha256"]) == 64
    assert "lm-eval" in record["conditions"]["versions"]
    assert re.search(r"4 documents x 4 repeats x 20 tokens: 320 tokens at most", " ".join(reporter.infos))


def test_prompt_hash_is_of_the_templated_text(tiny_tokenizer, source, tmp_path) -> None:
    import hashlib

    engine = SeededEngine(tiny_tokenizer)
    run(engine, source, tmp_path / "run", tasks="aime22", limit=1)
    (sample,) = read_samples(tmp_path / "run")
    prompt = tiny_tokenizer.decode(engine.requests[0].prompt_ids)
    assert sample["prompt_sha256"] == hashlib.sha256(prompt.encode()).hexdigest() and "<|im_start|>user" in prompt


@pytest.mark.parametrize("dies", [(0,), (1, 3), (5, 2, 1)])
def test_interrupted_runs_end_like_undisturbed_ones(tiny_tokenizer, source, tmp_path, dies) -> None:
    run(SeededEngine(tiny_tokenizer), source, tmp_path / "whole", repeats=2, limit=3)
    for after in dies:
        with pytest.raises(KeyboardInterrupt):
            run(SeededEngine(tiny_tokenizer, die_after=after, batch=2), source, tmp_path / "cut", repeats=2, limit=3)
        path = tmp_path / "cut/samples.jsonl"
        if path.exists():  # and a torn line on top
            path.write_bytes(path.read_bytes() + b'{"task": "aime", "doc')
    run(SeededEngine(tiny_tokenizer, batch=5), source, tmp_path / "cut", repeats=2, limit=3)
    lines = [sorted((tmp_path / name / "samples.jsonl").read_bytes().splitlines()) for name in ("whole", "cut")]
    assert lines[0] == lines[1]
    assert json.dumps(without_timing(tmp_path / "whole")) == json.dumps(without_timing(tmp_path / "cut"))


def test_a_finished_run_loads_no_model(tiny_tokenizer, source, tmp_path) -> None:
    first = run(SeededEngine(tiny_tokenizer), source, tmp_path / "run", limit=1)
    reporter = CollectingReporter()

    def factory():
        raise AssertionError("a model was loaded")

    again = run_eval(factory, "aime,gpqa", source, FIXED, model="double", fingerprint="f" * 64, max_new_tokens=20,
                     output=tmp_path / "run", limit=1, reporter=reporter)  # fmt: skip
    assert again == {**first, "finished_before": True}
    assert reporter.infos == [f"run {tmp_path / 'run'} is finished; these are its results"]


def test_the_default_folder_continues(tiny_tokenizer, source, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = run(SeededEngine(tiny_tokenizer), source, None, limit=1)
    again = run(SeededEngine(tiny_tokenizer), source, None, limit=1)
    other = run(SeededEngine(tiny_tokenizer), source, None, limit=1, seed=1)
    assert again["run"] == first["run"] != other["run"] and again["finished_before"]
    assert re.search(r"/reset-runs/double-aime-gpqa-[0-9a-f]{8}$", first["run"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "seed (0, now 1)"),
        ({"doc_ids": "2022-I-1,rec0"}, 'doc_ids (null, now ["2022-I-1", "rec0"])'),
        ({"max_new_tokens": 21}, "max_new_tokens (20, now 21)"),
        ({"fingerprint": "g" * 64}, "model_fingerprint"),
        ({"settings": PolicySettings(name="fixed", temperature=0.7)}, "policy.aime.temperature (0.6, now 0.7)"),
        ({"tasks": "aime"}, "tasks.gpqa (there, now null)"),
        ({"thinking": False}, "thinking (true, now false)"),
    ],
)
def test_other_settings_do_not_mix(tiny_tokenizer, source, tmp_path, change, named) -> None:
    run(SeededEngine(tiny_tokenizer), source, tmp_path / "run", limit=1)
    before = (tmp_path / "run/samples.jsonl").read_bytes()
    with pytest.raises(ResetError) as error:
        run(SeededEngine(tiny_tokenizer), source, tmp_path / "run", **{"limit": 1, **change})
    assert named in str(error.value)
    assert (tmp_path / "run/samples.jsonl").read_bytes() == before


def test_other_data_or_template_does_not_mix(tiny_tokenizer, tmp_path) -> None:
    import copy

    data = write_data(tmp_path / "data")
    with pytest.raises(KeyboardInterrupt):
        run(SeededEngine(tiny_tokenizer, die_after=1, batch=1), DataSource(data), tmp_path / "run", tasks="aime22")
    other = copy.deepcopy(tiny_tokenizer)
    other.chat_template = other.chat_template.replace("assistant", "helper")
    with pytest.raises(ResetError, match=r"document 2022-I-1 with another prompt"):
        run(SeededEngine(other), DataSource(data), tmp_path / "run", tasks="aime22")
    path = data / "aime_2022.jsonl"
    path.write_text(path.read_text().replace("plus 2", "plus 3"))
    with pytest.raises(ResetError, match=r"tasks\.aime22\.data_sha256"):
        run(SeededEngine(tiny_tokenizer), DataSource(data), tmp_path / "run", tasks="aime22")


def test_another_engine_does_not_mix(tiny_tokenizer, source, tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(SeededEngine(tiny_tokenizer, die_after=1), source, tmp_path / "run")
    with pytest.raises(ResetError, match=r"batch_invariant \(true, now false\)"):
        run(SeededEngine(tiny_tokenizer, batch_invariant=False), source, tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "--repeats must be at least 1, not 0"),
        ({"limit": 0}, "--limit must be at least 1, not 0"),
        ({"max_new_tokens": 0}, "--max-new-tokens must be at least 1"),
        ({"seed": -1}, "--seed"),
        ({"tasks": "gpka"}, "did you mean gpqa"),
        ({"settings": PolicySettings(name="reset", tau_0=-1.0)}, "--tau0"),
    ],
)
def test_bad_calls_end_before_anything(source, tmp_path, options, message) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        run(None, source, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_missing_data_ends_before_the_model(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(ResetError, match=r"aime_2022\.jsonl"):
        run(None, DataSource(tmp_path / "data"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nan_fails_its_sample_and_the_run_goes_on(tiny_tokenizer, source, tmp_path) -> None:
    reporter = CollectingReporter()
    engine = SeededEngine(tiny_tokenizer, broken=("aime/2022-I-2/0", "gpqa/rec0/1"))
    report = run(engine, source, tmp_path / "run", limit=2, repeats=2, reporter=reporter)
    samples = list(read_samples(tmp_path / "run"))
    assert len(samples) == 8
    bad = [s for s in samples if s["finish_reason"] == "error"]
    assert {(s["doc_id"], s["repeat"], s["score"]) for s in bad} == {("2022-I-2", 0, 0), ("rec0", 1, 0)}
    assert report["exit_code"] == 1 and report["failed"] == 2 and report["results"]["aime"]["errors"] == 1
    assert "task aime, document 2022-I-2, repeat 0: NaN here" in reporter.warnings
    assert report["error"].startswith("2 of 8 samples failed and score 0") and "(aime 1, gpqa 1)" in report["error"]


def test_failed_samples_are_made_again(tiny_tokenizer, source, tmp_path) -> None:
    """Finished or not; a model that fails them again ends the same way, one that does not like an undisturbed run."""
    broken = ("aime/2022-I-2/0", "gpqa/rec0/1")
    whole = run(SeededEngine(tiny_tokenizer), source, tmp_path / "whole", limit=2, repeats=2)
    first = run(SeededEngine(tiny_tokenizer, broken=broken), source, tmp_path / "run", limit=2, repeats=2)
    reporter, engine = CollectingReporter(), SeededEngine(tiny_tokenizer, broken=broken)
    again = run(engine, source, tmp_path / "run", limit=2, repeats=2, reporter=reporter)
    assert {r.request_id for r in engine.requests} == set(broken) and again["exit_code"] == 1
    assert again["error"] == first["error"] and again["results"] == first["results"]
    assert any("6 of 8 samples are there, 2 that failed are made again" in line for line in reporter.infos)
    kept = (tmp_path / "run/samples.jsonl").read_bytes()
    with pytest.raises(ResetError, match="no such model"):
        run_eval(no_model, "aime,gpqa", source, FIXED, model="double", fingerprint="f" * 64, max_new_tokens=20,
                 output=tmp_path / "run", limit=2, repeats=2)  # fmt: skip
    assert (tmp_path / "run/samples.jsonl").read_bytes() == kept
    with pytest.raises(KeyboardInterrupt):
        run(SeededEngine(tiny_tokenizer, die_after=1), source, tmp_path / "run", limit=2, repeats=2)
    mended = run(SeededEngine(tiny_tokenizer), source, tmp_path / "run", limit=2, repeats=2)
    assert mended["exit_code"] == 0 and mended["results"] == whole["results"] and mended["error"] is None
    assert json.dumps(without_timing(tmp_path / "whole")) == json.dumps(without_timing(tmp_path / "run"))


def no_model():
    raise ResetError("no such model")


def test_a_model_that_does_not_load_leaves_nothing(source, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for output in (tmp_path / "run", None):
        with pytest.raises(ResetError, match="no such model"):
            run_eval(no_model, "own", source, FIXED, model="m", fingerprint="f", output=output)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"results": {}}', "{", "tampered", "of another run", "of another context"]
)
def test_results_that_are_not_the_samples_are_made_again(tiny_tokenizer, source, tmp_path, text) -> None:
    run(SeededEngine(tiny_tokenizer), source, tmp_path / "run", tasks="own", limit=3)
    path, reporter = tmp_path / "run/results.json", CollectingReporter()
    good = json.loads(path.read_text())
    if text == "tampered":
        text = json.dumps({**good, "results": {"own": {**good["results"]["own"], "avg@k": 0.125}}})
    elif text == "of another run":
        run(SeededEngine(tiny_tokenizer), source, tmp_path / "other", tasks="own", limit=3, seed=1, repeats=2)
        text = (tmp_path / "other/results.json").read_text()
    elif text == "of another context":
        text = json.dumps({**good, "context": 1})
    path.write_text(text)
    engine = SeededEngine(tiny_tokenizer)
    report = run(engine, source, tmp_path / "run", tasks="own", limit=3, reporter=reporter)
    assert not report["finished_before"] and not engine.requests
    assert json.dumps(without_timing(tmp_path / "run")) == json.dumps({k: v for k, v in good.items() if k != "timing"})
    assert any("results.json is not what the samples say" in line for line in reporter.warnings)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"seed": 5}, "seed 5 is not that"), ({"doc_id": "zzz"}, 'no document "zzz"'), ({"repeat": 7}, "repeat 7"),
     ({"task": "gpqa"}, 'task "gpqa" is not of this run'), ({"score": 7}, "score 7")],
)  # fmt: skip
def test_samples_of_no_such_run_are_refused_before_the_model(tiny_tokenizer, source, tmp_path, change, message) -> None:
    run(SeededEngine(tiny_tokenizer), source, tmp_path / "run", tasks="own", limit=3)
    path = tmp_path / "run/samples.jsonl"
    lines = path.read_text().split("\n")
    path.write_text(lines[0] + "\n" + json.dumps({**json.loads(lines[1]), **change}) + "\n")
    with pytest.raises(ResetError, match=rf"samples\.jsonl, line 2: .*{re.escape(message)}"):
        run(None, source, tmp_path / "run", tasks="own", limit=3)


def test_files_of_a_run_that_are_folders(tiny_tokenizer, source, tmp_path) -> None:
    for name in ("results.json", "samples.jsonl", "run.json"):
        path = tmp_path / name / "run"
        run(SeededEngine(tiny_tokenizer), source, path, tasks="own", limit=1)
        (path / name).unlink()
        (path / name).mkdir()
        with pytest.raises(ResetError, match=re.escape(str(path / name))):
            run(None, source, path, tasks="own", limit=1)


def test_other_end_tokens_do_not_mix(tiny_tokenizer, source, tmp_path) -> None:
    """What ends a text stands beside the weights, outside the fingerprint; older runs that do not tell go on."""

    def engine(*ids, **more):
        made = SeededEngine(tiny_tokenizer, **more)
        made.end_ids = frozenset(ids)
        return made

    with pytest.raises(KeyboardInterrupt):
        run(engine(5, 2, die_after=2, batch=1), source, tmp_path / "run", tasks="own", limit=4)
    with pytest.raises(ResetError, match=r"end_ids \(\[2, 5\], now \[2, 5, 60\]\)"):
        run(engine(2, 5, 60), source, tmp_path / "run", tasks="own", limit=4)
    record = json.loads((tmp_path / "run/run.json").read_text())
    del record["engine"]["end_ids"]
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    assert run(engine(2, 5, 60), source, tmp_path / "run", tasks="own", limit=4)["exit_code"] == 0


def longer_problems(folder, count):
    """The data folder with the first ``count`` of four problems of 2022 made long; a context between short and long."""
    data = write_data(folder)
    rows = [json.loads(line) for line in (data / "aime_2022.jsonl").read_text().splitlines()]
    for row in rows[:count]:
        row["problem"] = "word " * 200 + row["problem"]
    (data / "aime_2022.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataSource(data)


@pytest.mark.parametrize(("count", "repeats"), [(1, 3), (2, 1)])
def test_prompts_that_do_not_fit_are_counted_and_said(tiny_tokenizer, tmp_path, count, repeats) -> None:
    source, reporter = longer_problems(tmp_path / "data", count), CollectingReporter()
    engine = SeededEngine(tiny_tokenizer, context=200)
    report = run(engine, source, tmp_path / "run", tasks="aime22", repeats=repeats, reporter=reporter)
    assert report["exit_code"] == 0 and report["error"] is None and report["context"] == 200
    assert report["results"]["aime22"]["prompts_too_long"] == count
    (line,) = [line for line in reporter.warnings if "fit" in line]
    assert re.match(rf"task aime22: {count} of 4 prompts do(es)? not fit the model's context of 200 tokens; ", line)
    lost = [s for s in read_samples(tmp_path / "run") if s["n_tokens"] == 0]
    assert len(lost) == count * repeats and len(engine.requests) == (4 - count) * repeats
    assert {(s["finish_reason"], s["text"], s["score"], s["why"]) for s in lost} == {("length", "", 0, "truncated")}
    from resetcli.cli.scores import render

    assert f"aime22: {count} of 4 prompts did not fit the context of 200 tokens" in render(report)


@pytest.mark.parametrize("count", [3, 4])
def test_a_task_whose_prompts_mostly_do_not_fit_is_refused(tiny_tokenizer, tmp_path, count) -> None:
    """Before a sample of any task is made."""
    source = longer_problems(tmp_path / "data", count)
    engine = SeededEngine(tiny_tokenizer, context=200)
    with pytest.raises(ResetError) as error:
        run(engine, source, tmp_path / "run", tasks="gsm8k,aime22")
    assert str(error.value).startswith(
        f"task aime22: {count} of 4 prompts do not fit the model's context of 200 tokens: use a model with a longer"
    )
    assert not engine.requests and engine.closed and not (tmp_path / "run/samples.jsonl").exists()


def test_policies_by_task(tiny_tokenizer, source, tmp_path) -> None:
    engine = SeededEngine(tiny_tokenizer)
    settings = {"aime": FIXED, "gpqa": PolicySettings(name="reset", tau_0=0.5, t_low=0.3)}
    run(engine, source, tmp_path / "run", settings=settings, limit=2)
    used = {r.request_id.split("/")[0]: s for r, s in zip(engine.requests, engine.settings, strict=True)}
    assert used == settings


def test_the_estimate_is_measured(tiny_tokenizer, source, tmp_path) -> None:
    reporter = CollectingReporter()
    engine = SeededEngine(tiny_tokenizer)
    run(engine, source, tmp_path / "run", tasks="aime22", max_new_tokens=2000, repeats=3, reporter=reporter)
    (line,) = [line for line in reporter.infos if "documents x" in line]
    assert re.search(r"^4 documents x 3 repeats x \d+ tokens: \d+ tokens at most; at [\d.]+ tokens/s, measured", line)
    assert not any("to go" in info for info in reporter.infos)  # 12 samples are too few to look twice
    run(SeededEngine(tiny_tokenizer), source, tmp_path / "longer", tasks="aime", repeats=2, reporter=reporter)
    assert re.search(r"^3 samples took \d+ s: about \d+ s to go$", reporter.infos[-1])
    assert len(engine.requests) == 12 and len(list(read_samples(tmp_path / "run"))) == 12


def test_perplexity_by_hand(tiny_bos_tokenizer, source, tmp_path) -> None:
    from evaluation_data import WIKITEXT
    from evaluation_double import fake_logprob

    report = run(
        SeededEngine(tiny_bos_tokenizer), source, tmp_path / "run", tasks="wikitext,aime22", repeats=2, limit=9
    )
    found = report["results"]["wikitext"]
    samples = [s for s in read_samples(tmp_path / "run") if s["task"] == "wikitext"]
    assert (
        len(samples) == 3 and found["n"] == 3 and found["repeats"] == 1 and report["results"]["aime22"]["repeats"] == 2
    )
    from resetcli.evaluation.tasks.documents import articles

    nats = tokens = words = 0
    for text in articles(WIKITEXT):
        ids = [tiny_bos_tokenizer.bos_token_id, *tiny_bos_tokenizer(text, add_special_tokens=False)["input_ids"]]
        nats -= sum(fake_logprob(a, b) for a, b in itertools.pairwise(ids))
        tokens += len(ids) - 1
        words += len(re.split(r"\s+", text))
    assert found["word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-9)
    assert found["byte_perplexity"] == pytest.approx(math.exp(nats / len(WIKITEXT.encode())), rel=1e-9)
    assert found["token_perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-9)
    # lm-eval's own aggregation of the same log-likelihoods agrees.
    assert found["word_perplexity,score"] == pytest.approx(found["word_perplexity"], rel=1e-9)
    assert found["bits_per_byte,score"] == pytest.approx(found["bits_per_byte"], rel=1e-9)


def test_an_engine_can_serve_several_runs(tiny_tokenizer, source, tmp_path) -> None:
    engine = SeededEngine(tiny_tokenizer)
    for name in ("a", "b"):
        run(engine, source, tmp_path / name, tasks="own", limit=2, close_engine=False)
    assert (
        not engine.closed and (tmp_path / "a/samples.jsonl").read_bytes() == (tmp_path / "b/samples.jsonl").read_bytes()
    )
