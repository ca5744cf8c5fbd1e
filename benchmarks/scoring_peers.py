"""The golden file of model outputs through our scoring and through lm-eval's own, row by row; one JSON line.

    python benchmarks/scoring_peers.py [FILE] [--rows]

lm-eval's side is its own evaluator, filters and metrics over its own task files: ``aime`` for the rows with a
mathematical answer, ``gpqa_diamond_cot_zeroshot`` (both of its filters) for those with a letter. Only documents and
outputs are ours: a stand-in model answers with the row's text, whole, or cut at the task's stop strings as an engine
would. The file is made of hard cases, so the counts say which cases a scoring gets right, not how often such cases
come up in a model's outputs. ``--rows`` lists the rows on which each scoring is wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.tasks._yaml_loader import load_yaml

from resetcli.base.versions import versions
from resetcli.engines.prompting import opens_thought
from resetcli.evaluation.scoring.score import Score, score_output
from resetcli.evaluation.tasks import TASKS

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "evaluation" / "scoring" / "golden.jsonl"
PEERS = {"math": "aime/aime.yaml", "letters": "gpqa/cot_zeroshot/gpqa_diamond_cot_zeroshot.yaml"}
"""lm-eval's task files, in its folder of tasks."""


class Replay(LM):
    """Answers each document with its row's text, cut at the task's stop strings if ``stops``."""

    def __init__(self, stops: bool):
        super().__init__()
        self.stops = stops

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        texts = []
        for request in requests:
            text = request.doc["text"]
            for stop in request.args[1]["until"] if self.stops else ():
                text = text.split(stop)[0]
            texts.append(text)
        return texts

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        raise AssertionError("these tasks generate")

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        raise AssertionError("these tasks generate")


def their_task(kind: str, rows: Sequence[Mapping[str, Any]]) -> ConfigurableTask:
    """lm-eval's own task of ``kind`` over ``rows`` in place of the hub's documents."""
    from datasets import Dataset

    config = load_yaml(Path(str(files("lm_eval") / "tasks" / PEERS[kind])), resolve_func=True)
    docs: list[dict[str, Any]] = []
    for row in rows:
        if kind == "math":
            docs.append({"text": row["text"], "Question": row["id"], "Answer": row["target"]})
        else:
            named = {f"choice{i}": choice for i, choice in enumerate(row["choices"], 1)}
            docs.append({
                "text": row["text"], "Question": row["id"], **named, "choices": row["choices"],
                "answer": f"({row['target']})",
            })  # fmt: skip
    data = Dataset.from_list(docs)
    # Their process_docs shuffles the choices and writes the key; here both stand in the row.
    config.pop("process_docs", None)
    config["custom_dataset"] = lambda **_: {"train": data}
    return ConfigurableTask(config=config)


def their_scores(kind: str, rows: Sequence[Mapping[str, Any]], *, stops: bool) -> dict[str, list[int]]:
    """lm-eval's score of each row, by task and filter."""
    task = their_task(kind, rows)
    name = task.config.task
    samples = evaluate(Replay(stops), {"tasks": {name: task}}, log_samples=True, bootstrap_iters=0)["samples"][name]
    found: dict[str, list[int]] = {}
    for sample in sorted(samples, key=lambda s: s["doc_id"]):
        label = name if sample["filter"] == "none" else f"{name}, {sample['filter']}"
        found.setdefault(label, []).append(int(sample["exact_match"]))
    return found


def our_scores(kind: str, rows: Sequence[Mapping[str, Any]]) -> list[Score]:
    """Our ``Score`` of each row."""
    return [
        score_output(
            kind, row["text"], row["target"], row["finish_reason"], alt_answers=row.get("alt_answers", ()),
            opened_in_prompt=opens_thought(row.get("prompt", "")),
        )
        for row in rows
    ]  # fmt: skip


def compare(path: Path = GOLDEN, list_rows: bool = False) -> list[dict[str, Any]]:
    """By task and scoring: how many scores are right; "credited" 1 where 0 is right, "missed" 0 where 1 is right."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    results = []
    for task in dict.fromkeys(row["task"] for row in rows):
        part = [row for row in rows if row["task"] == task]
        kind = TASKS[task].kind
        found = {"resetcli": [score.score for score in our_scores(kind, part)]}
        for stops in (False, True):
            for label, scores in their_scores(kind, part, stops=stops).items():
                found[f"lm-eval {label}" + (", cut at its stop strings" if stops else "")] = scores
        for scoring, scores in found.items():
            credited = [row["id"] for row, score in zip(part, scores, strict=True) if score > row["score"]]
            missed = [row["id"] for row, score in zip(part, scores, strict=True) if score < row["score"]]
            results.append({
                "task": task, "scoring": scoring, "rows": len(part), "right": len(part) - len(credited) - len(missed),
                "credited": credited if list_rows else len(credited), "missed": missed if list_rows else len(missed),
            })  # fmt: skip
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=GOLDEN)
    parser.add_argument("--rows", action="store_true", help="ids of the rows in place of counts")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    results = compare(args.file, args.rows)
    print(json.dumps({"bench": "scoring_peers", "results": results, "versions": versions("lm-eval", "resetcli")}))


if __name__ == "__main__":
    main()
