"""The registry, the YAML files and the documents: names, prompts, what lm-eval makes of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from resetcli.base.errors import ResetError, UsageError
from resetcli.data.sources import DataSource
from resetcli.evaluation.tasks import TASKS, resolve_tasks
from resetcli.evaluation.tasks.documents import articles, documents


def test_names_and_lists() -> None:
    assert [t.name for t in resolve_tasks(" aime , gpqa,aime,")] == ["aime", "gpqa"]
    assert [t.name for t in resolve_tasks(["gsm8k", "aime22,aime23"])] == ["gsm8k", "aime22", "aime23"]
    with pytest.raises(UsageError, match=r"unknown task 'aimee': did you mean aime"):
        resolve_tasks("aimee")
    with pytest.raises(UsageError, match="names no task"):
        resolve_tasks(" , ")


def test_the_registry_needs_nothing_heavy() -> None:
    code = (
        "import sys, resetcli.evaluation.tasks, resetcli.evaluation.evaluate\n"
        "print([m for m in ('torch', 'lm_eval', 'transformers', 'datasets') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize("name", TASKS)
def test_yaml_and_registry_agree(name, source) -> None:
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(TASKS[name].yaml, resolve_func=True)
    assert config["task"] == name and config["dataset_kwargs"] == {"data": name}
    assert config["metadata"]["version"] == TASKS[name].version
    perplexity = config["output_type"] == "loglikelihood_rolling"
    assert perplexity == (TASKS[name].kind == "perplexity")
    if not perplexity:
        assert config["process_results"].__name__ == f"process_{TASKS[name].kind}"


def test_articles_join_to_the_text() -> None:
    from evaluation_data import WIKITEXT

    parts = articles(WIKITEXT)
    assert "".join(parts) == WIKITEXT
    assert [p.split(" = ")[1] for p in parts] == ["First", "Second one", "Third"]


def test_articles_of_the_real_text(shared_data) -> None:
    docs, sha256 = documents("wikitext", DataSource(shared_data))
    text = "".join(doc["text"] for doc in docs)
    assert len(docs) == 60 and text.encode() == (shared_data / "wikitext2_test.txt").read_bytes()
    assert sha256 == "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08"


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(ResetError, match=r"aime_2022\.jsonl"):
        documents("aime", DataSource(tmp_path))


def built(name, source, **options):
    from resetcli.evaluation.tasks.build import build_task

    return build_task(TASKS[name], source, **{"repeats": 1, "max_new_tokens": 64, **options})


def test_prompts_hold_the_problem_and_ask_for_a_box(source) -> None:
    task = built("aime", source)
    docs = list(task.eval_docs)
    assert len(docs) == 16 and docs[0]["doc_id"] == "2022-I-1"
    text = task.doc_to_text(docs[0])
    assert text.startswith(docs[0]["problem"] + "\n\n") and "\\boxed{}" in text
    assert task.doc_to_target(docs[0]) == docs[0]["target"]


def test_choices_stand_as_they_are(source) -> None:
    task = built("gpqa", source)
    doc = task.eval_docs[1]
    text = task.doc_to_text(doc)
    assert "Question 1 [x]?" in text and "{{w2}}" in text
    letter = doc["target"]
    assert f"\n{letter}) right\n" in text
    assert [line[:3] for line in text.splitlines() if line[1:3] == ") "] == ["A) ", "B) ", "C) ", "D) "]


def test_all_repeats_reach_the_score(source) -> None:
    task = built("aime22", source, repeats=4)
    task.build_all_requests(limit=1)
    instance = task.instances[0]
    target = instance.doc["target"]
    for text in (f"\\boxed{{{target}}}", "\\boxed{999}", f"so \\boxed{{0{target}}}", "none"):
        instance.resps.append(text)
    task.apply_filters()
    found = task.process_results(instance.doc, [instance.filtered_resps["score"]])
    assert found == {"exact_match": 0.5}


def test_an_alternative_key_counts(source) -> None:
    task = built("aime22", source)
    assert task.process_results(task.eval_docs[0], [["\\boxed{9}"]]) == {"exact_match": 1.0}
    assert task.process_results(task.eval_docs[1], [["\\boxed{9}"]]) == {"exact_match": 0.0}


def test_own_problems_are_all_there() -> None:
    docs, _ = documents("own", DataSource())
    assert len(docs) >= 20 and all(doc["target"] for doc in docs)
