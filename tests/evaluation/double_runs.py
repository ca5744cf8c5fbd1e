"""Runs of the double that answers by arithmetic, and a run whose scorer had a fault."""

from __future__ import annotations

import json

from evaluation_double import FIXED, SeededEngine

from resetcli.evaluation.evaluate import run_eval


def made(tokenizer, source, path, engine=None, **options):
    """``run_eval`` of the double, or of ``engine``."""
    options = {"model": "double", "fingerprint": "f" * 64, "max_new_tokens": 20, "repeats": 2, **options}
    tasks = options.pop("tasks", "aime,gpqa")
    return run_eval(lambda: engine or SeededEngine(tokenizer), tasks, source, FIXED, output=path, **options)


def spoil(run, number=0):
    """A right sample of the run made wrong, as by a scorer with a fault; its line's index and key."""
    path = run / "samples.jsonl"
    lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    at = [i for i, line in enumerate(lines) if line["why"] == "correct"][number]
    before = {k: lines[at][k] for k in ("answer", "score", "why")}
    lines[at].update(answer="nonsense", score=0, why="wrong")
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return at, {k: lines[at][k] for k in ("task", "doc_id", "repeat")}, before
