"""Comparisons of runs on disk: what is refused and how it is said, what pairs, and every figure by hand."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from evaluation_double import FIXED, SeededEngine
from simulated_runs import table_of, write_run

from resetcli.base.errors import ResetError, UsageError
from resetcli.evaluation.compare import compare_runs
from resetcli.evaluation.evaluate import run_eval
from resetcli.evaluation.paired import compare_pair, compare_perplexity
from resetcli.evaluation.tables import to_csv, to_latex, to_markdown
from resetcli.policy.settings import PolicySettings

A = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0], [0, 1, 0, 0]])
B = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [0, -1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]])


def test_a_pair_by_hand() -> None:
    found = compare_pair(table_of(A), table_of(B), pass_at=2)
    assert (found["n"], found["repeats"]) == (5, 4)
    assert found["values"]["avg@k"] == [10 / 20, 11 / 20]
    main = found["differences"]["avg@k"]
    assert main["difference"] == pytest.approx(1 / 20)
    # d in quarters: +1, +1, -3, +2 (and 0), with 5, 1, 3 and 4 right of 8, weights 1/15, 1/7, 1/15, 1/16. Swaps with
    # sums +-1 are the nearest to 0: 1 1 -3 2 (ours), 1 -1 3 -2 and -1 1 3 -2, and their mirror images. Weighted, they
    # sum to 0.135, -0.001 and 0.151, so of all 16 only the second and its image are nearer to 0 than ours.
    assert main["p"] == 14 / 16
    assert main["ci95"][0] < 0 < main["ci95"][1] and main["detectable"] > 0.3
    # Majorities: A 1/2 (a tie), 1, 0, 1, 0; B 1, 1, 0, 0, 1.
    assert found["values"]["maj@k"] == [2.5 / 5, 3 / 5]
    assert found["mcnemar"] == {"both": 1, "only_a": 1, "only_b": 2, "neither": 1, "p": 1}
    assert found["values"]["pass@k"] == [4 / 5, 4 / 5]
    # pass@2 of c right in 4: 1 - C(4 - c, 2) / 6.
    assert found["values"]["pass@2"] == pytest.approx([(5 / 6 + 1 + 0 + 1 + 1 / 2) / 5, (1 + 1 + 1 / 2 + 0 + 1) / 5])
    assert found["values"]["truncated"] == [0, 1 / 20] and found["values"]["unparsed"] == [0, 0]
    assert (found["better"], found["worse"], found["same"]) == (3, 1, 1)
    assert found["flipped"] == [
        {"doc_id": "p003", "a": 3, "b": 0, "gained": False},
        {"doc_id": "p004", "a": 1, "b": 3, "gained": True},
        {"doc_id": "p000", "a": 2, "b": 3, "gained": True},
    ]
    back = compare_pair(table_of(B), table_of(A))
    assert back["differences"]["avg@k"]["difference"] == pytest.approx(-1 / 20) and back["worse"] == 3


def test_one_sample_a_problem_is_mcnemar() -> None:
    a, b = np.array([[1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1]]).T, np.array([[1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1]]).T
    found = compare_pair(table_of(a), table_of(b))
    assert found["mcnemar"]["only_b"] == 5 and found["mcnemar"]["only_a"] == 2
    assert {found["differences"][m]["p"] for m in ("avg@k", "maj@k", "pass@k")} == {found["mcnemar"]["p"]}


def test_only_repeats_of_both_are_compared(tmp_path) -> None:
    runs = [write_run(tmp_path / "four", {"aime": A}, policy="fixed"), write_run(tmp_path / "two", {"aime": B[:, :2]})]
    found = compare_runs(runs)
    (pair,) = found["comparisons"]
    assert pair["repeats"] == 2 and pair["values"]["avg@k"] == [A[:, :2].mean(), (B[:, :2] > 0).mean()]
    assert "four has 4 repeats, two 2; the comparison takes the first 2" in found["warnings"][0]
    assert found["runs"][0]["tasks"]["aime"]["avg@k"] == A.mean() and found["runs"][0]["tasks"]["aime"]["repeats"] == 4
    with pytest.raises(UsageError, match="pass@3 needs at least 3 samples"):
        compare_runs(runs, pass_at=3)


def test_two_evaluations_end_to_end(tiny_model_dir, source, tmp_path) -> None:
    """The runs of ``reset eval`` itself, here of an engine that answers by arithmetic, one of them in a gzip file."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    common = dict(model="double", fingerprint="f" * 64, repeats=4, max_new_tokens=50)
    for name, settings, seed, packed in (("a", FIXED, 0, False), ("b", PolicySettings(tau_0=0.5), 1, True)):
        run_eval(lambda: SeededEngine(tokenizer), "aime,gpqa", source, settings, seed=seed, output=tmp_path / name,
                 packed=packed, **common)  # fmt: skip
    found = compare_runs([tmp_path / "a", tmp_path / "b"])
    assert [pair["task"] for pair in found["comparisons"]] == ["aime", "gpqa"]
    for number, name in enumerate("ab"):
        results = json.loads((tmp_path / name / "results.json").read_text())["results"]
        for pair in found["comparisons"]:
            assert pair["values"]["avg@k"][number] == pytest.approx(results[pair["task"]]["avg@k"], abs=1e-12)
            own = found["runs"][number]["tasks"][pair["task"]]
            assert own.pop("tokens_per_s") > 0
            assert all(results[pair["task"]][key] == value for key, value in own.items())
    assert [run["method"] for run in found["runs"]] == ["FP32 fixed", "FP32 reset"]
    differs = {row["name"]: row["values"] for row in found["differs"]}
    assert differs["settings.seed"] == [0, 1] and differs["settings.policy.aime.tau_0"] == [None, 0.5]
    assert not any(name.startswith("settings.tasks") for name in differs)
    again = compare_runs([tmp_path / "a", tmp_path / "b"])
    assert again["comparisons"] == found["comparisons"] and again["differs"] == found["differs"]
    timing = json.loads((tmp_path / "a/results.json").read_text())["timing"]
    assert sum(spent["tokens"] for spent in timing["tasks"].values()) == timing["tokens_made"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (dict(scores={"aime": A}, versions={"aime": 9}), r"task aime: version \(1 in .*a, 9 in .*b\)"),
        (dict(scores={"aime": A}, data="e"), r"task aime: data \(dddddddd in .*a, eeeeeeee in .*b\)"),
        (dict(scores={"aime": A[:3]}, limit=3), r"documents \(5, p000 to p004 in .*a, 3, p000 to p002 in .*b\)"),
        (dict(scores={"aime": A, "gpqa": B}), r"task gpqa: in .*b only"),
        (dict(scores={"gpqa": B}, data="e"), r"task aime: in .*a only; task gpqa: in .*b only"),
        (dict(scores={"aime": A}, left_out=2), r"run .*b is not finished: 18 of 20 samples of task aime are there"),
    ],
)
def test_runs_that_asked_different_things_are_refused_by_name(tmp_path, other, said) -> None:
    first = write_run(tmp_path / "a", {"aime": A})
    with pytest.raises(ResetError, match=said) as refused:
        compare_runs([first, write_run(tmp_path / "b", **other)])
    assert refused.value.exit_code == 1


def test_documents_that_differ_in_the_middle_are_named(tmp_path) -> None:
    runs = [write_run(tmp_path / name, {"aime": A[:3]}) for name in ("a", "b")]
    path = runs[1] / "samples.jsonl"
    path.write_text(path.read_text().replace('"p001"', '"p001x"'))
    with pytest.raises(ResetError, match=r"p000 to p002, with p001 in .*a, 3, p000 to p002, with p001x in .*b\)"):
        compare_runs(runs)


def test_damaged_scores_are_an_error_that_names_them(tmp_path) -> None:
    runs = [write_run(tmp_path / name, {"aime": A}) for name in ("a", "b")]
    path = runs[1] / "samples.jsonl"
    text = path.read_text()
    right, why = '"score": 1,', '"correct"'
    for old, new in ((right, '"score": 0.5,'), (right, '"score": 5,'), (why, '"loglikelihood"')):
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(ResetError, match=r"run .*b, document p000, repeat 0: score .* is not one of task aime"):
            compare_runs(runs)


def test_runs_without_a_task(tmp_path) -> None:
    runs = [write_run(tmp_path / name, {"aime": A}) for name in ("a", "b")]
    for run in runs:
        header = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**header, "tasks": {}}))
    with pytest.raises(ResetError, match="names no task"):
        compare_runs(runs)


def test_tasks_in_common_are_compared_when_named(tmp_path) -> None:
    runs = [write_run(tmp_path / "a", {"aime": A}), write_run(tmp_path / "b", {"aime": B, "gpqa": B})]
    assert [pair["task"] for pair in compare_runs(runs, tasks="aime,")["comparisons"]] == ["aime"]
    with pytest.raises(ResetError, match=r"task gpqa: in .*b only"):
        compare_runs(runs, tasks="aime,gpqa")
    with pytest.raises(ResetError, match=r"task math500: in none of the runs"):
        compare_runs(runs, tasks="aime,math500")
    with pytest.raises(UsageError, match="did you mean aime"):
        compare_runs(runs, tasks="aimee")


def test_what_is_no_finished_run(tmp_path) -> None:
    run = write_run(tmp_path / "a", {"aime": A})
    (tmp_path / "empty").mkdir()
    odd = write_run(tmp_path / "odd", {"aime": A})
    (odd / "run.json").write_text('{"run": 1, "settings": {}, "tasks": [], "model": {"name": "x"}, "policy": {}}')
    torn = write_run(tmp_path / "torn", {"aime": A})
    lines = (torn / "samples.jsonl").read_text().splitlines(keepends=True)
    (torn / "samples.jsonl").write_text("".join([*lines[:7], "{}\n", *lines[7:]]))
    twice = write_run(tmp_path / "twice", {"aime": A})
    (twice / "samples.jsonl").write_text("".join([*lines[:19], lines[0]]))
    for path, said in ((tmp_path / "none", "not the folder of an evaluation run"), (tmp_path / "empty", "no run.json"),
                       (odd, "not the record of a run"), (torn, "samples.jsonl, line 8"),
                       (twice, "document p000 has 5 samples, not 4")):  # fmt: skip
        with pytest.raises(ResetError, match=said):
            compare_runs([run, path])
    for paths, said in (([run], "two runs or more"), ([run, tmp_path / "." / "a"], "named twice")):
        with pytest.raises(UsageError, match=said):
            compare_runs(paths)


@pytest.mark.parametrize("key", ["run", "model", "policy", "tasks", "settings", "engine", "conditions"])
@pytest.mark.parametrize("value", [None, 7, [], "x", {"name": 3, "versions": []}, {"aime": {}}])
def test_an_edited_header_is_an_error_or_harmless(tmp_path, key, value) -> None:
    runs = [write_run(tmp_path / name, {"aime": A}) for name in ("a", "b")]
    header = json.loads((runs[1] / "run.json").read_text())
    (runs[1] / "run.json").write_text(json.dumps({**header, key: value}))
    with contextlib.suppress(ResetError):
        found = compare_runs(runs, resamples=1000)
        json.dumps(found, allow_nan=False)
        to_csv(found), to_latex(found), to_markdown(found)


def test_many_runs_each_against_the_base_of_its_model(tmp_path) -> None:
    runs = [
        write_run(tmp_path / "base", {"aime": A}, model="Qwen3-8B", nvfp4=False, policy="fixed"),
        write_run(tmp_path / "other", {"aime": A, "gpqa": A}, model="R1-7B-nvfp4"),
        write_run(tmp_path / "rtn", {"aime": B, "gpqa": B}, policy="fixed"),
        write_run(tmp_path / "reset", {"gpqa": A, "aime": B}),
        write_run(tmp_path / "base-gpqa", {"gpqa": B}, model="Qwen3-8B", nvfp4=False, policy="fixed"),
    ]
    found = compare_runs(runs)
    pairs = [(found["runs"][c["b"]]["run"], found["runs"][c["a"]]["run"], c["task"]) for c in found["comparisons"]]
    named = [(b.rpartition("/")[2], a.rpartition("/")[2], task) for b, a, task in pairs]
    # The base is a method, here of two folders, whatever their order; the only run of a model has none.
    assert named == [("rtn", "base", "aime"), ("rtn", "base-gpqa", "gpqa"), ("reset", "base-gpqa", "gpqa"),
                     ("reset", "base", "aime")]  # fmt: skip
    # Two folders of one method with different tasks are one method.
    assert [run["method"] for run in found["runs"]] == [
        "BF16 fixed", "NVFP4 reset", "NVFP4 fixed", "NVFP4 reset", "BF16 fixed"
    ]  # fmt: skip
    assert [run["model"] for run in found["runs"]] == ["Qwen3-8B", "R1-7B", "Qwen3-8B", "Qwen3-8B", "Qwen3-8B"]
    smallest = min(c["differences"]["avg@k"]["p"] for c in found["comparisons"])
    assert min(c["p_holm"] for c in found["comparisons"]) == min(1, 4 * smallest)


def test_names_of_runs(tmp_path) -> None:
    runs = [write_run(tmp_path / name, {"aime": A}) for name in ("one", "two")]
    assert [run["method"] for run in compare_runs(runs)["runs"]] == ["NVFP4 reset (one)", "NVFP4 reset (two)"]
    found = compare_runs(runs, labels=["RTN", "ReSET@Qwen"])["runs"]
    assert [(run["method"], run["model"]) for run in found] == [("RTN", "Qwen3-8B"), ("ReSET", "Qwen")]
    for labels in (["RTN"], ["RTN", " "], ["RTN", "@Qwen"]):
        with pytest.raises(UsageError, match="--labels"):
            compare_runs(runs, labels=labels)


def test_what_makes_a_comparison_doubtful_is_said(tmp_path) -> None:
    runs = [
        write_run(tmp_path / "a", {"aime": A}, limit=5, max_new_tokens=64),
        write_run(tmp_path / "b", {"aime": B}, limit=5, max_new_tokens=128),
    ]
    lines = (runs[1] / "samples.jsonl").read_text().splitlines()
    failed = {**json.loads(lines[0]), "finish_reason": "error", "score": 0, "why": "unparsed", "answer": None}
    (runs[1] / "samples.jsonl").write_text("\n".join([json.dumps(failed), *lines[1:]]) + "\n")
    header = json.loads((runs[0] / "run.json").read_text())
    (runs[0] / "run.json").write_text(json.dumps({**header, "conditions": {"versions": {"resetcli": "0.0.1"}}}))
    said = compare_runs(runs)["warnings"]
    assert "a has chosen documents" in said[0] and "b has chosen documents" in said[1]
    assert said[2] == "b, aime: 1 samples failed (logits not finite) and score 0"
    assert said[3].startswith("the runs were scored by other versions: 0.0.1 (a), None (b)")
    assert said[4] == "max_new_tokens differs: 64 in a, 128 in b"


def test_perplexities_of_the_same_tokens(tmp_path) -> None:
    nats = np.array([[-30.0], [-41.0], [-33.0]])
    runs = [write_run(tmp_path / "a", {"wikitext": nats}, results={"wikitext": {"word_perplexity": 12.5}}),
            write_run(tmp_path / "b", {"wikitext": nats * 1.1})]  # fmt: skip
    found = compare_runs(runs)
    (pair,) = found["comparisons"]
    tokens = 10 + 11 + 12
    assert pair["values"]["token_perplexity"] == pytest.approx([np.exp(104 / tokens), np.exp(114.4 / tokens)])
    assert pair["differences"]["log_perplexity"]["difference"] == pytest.approx(10.4 / tokens)
    assert pair["differences"]["log_perplexity"]["p"] == 2 / 8
    assert [run["tasks"]["wikitext"]["word_perplexity"] for run in found["runs"]] == [12.5, None]
    lines = (runs[1] / "samples.jsonl").read_text().replace('"n_tokens": 11', '"n_tokens": 13')
    (runs[1] / "samples.jsonl").write_text(lines)
    found = compare_runs(runs)
    assert not found["comparisons"] and "count tokens differently" in found["warnings"][0]
    assert compare_perplexity(table_of(A[:1, :1]), table_of(B[:1, :1]))["differences"]["log_perplexity"]["ci95"] is None
