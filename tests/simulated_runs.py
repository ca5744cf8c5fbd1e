"""Runs on disk with chosen scores, in the files that an evaluation writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from resetcli.base.seeds import sample_seed
from resetcli.evaluation.columns import Columns, ScoreTable
from resetcli.evaluation.runs import RunFolder
from resetcli.evaluation.tasks import TASKS


def write_run(
    folder: Path,
    scores: dict[str, np.ndarray],
    *,
    model: str = "Qwen3-8B-nvfp4",
    policy: str = "reset",
    nvfp4: bool = True,
    limit: int | None = None,
    versions: dict[str, int] | None = None,
    data: str = "d",
    max_new_tokens: int = 64,
    left_out: int = 0,
    results: dict | None = None,
) -> Path:
    """A finished run with ``scores`` [documents, repeats] by task (log-likelihoods for wikitext), the last
    ``left_out`` samples missing. Wrong answers are all "7"; a score of -1 stands for a truncated sample."""
    tasks = {t: {"version": (versions or {}).get(t, TASKS[t].version), "data_sha256": data * 64, "documents": len(s)}
             for t, s in scores.items()}  # fmt: skip
    repeats = max(s.shape[1] for s in scores.values())
    settings = {"model_fingerprint": model, "tasks": tasks, "policy": {t: {"name": policy} for t in tasks},
                "max_new_tokens": max_new_tokens, "limit": limit, "seed": 0, "thinking": True}  # fmt: skip
    engine = {"nvfp4": nvfp4, "dtype": "bfloat16", "activations": "w4a4" if nvfp4 else None}
    samples = [s for task, table in scores.items() for s in samples_of(task, table)]
    with RunFolder(folder, settings, repeats=repeats) as run:
        run.begin({"run": 1, "model": {"name": model, "path": "/m", "fingerprint": model}, "policy": {"name": policy},
                   "tasks": tasks, "limited": limit is not None, "repeats": repeats,
                   "engine": engine})  # fmt: skip
    lines = (json.dumps(s) + "\n" for s in samples[: len(samples) - left_out])
    (folder / "samples.jsonl").write_text("".join(lines))
    if results is not None:
        (folder / "results.json").write_text(json.dumps({"results": results, "timing": {}}))
    return folder


def samples_of(task: str, scores: np.ndarray) -> list[dict]:
    """Lines of samples.jsonl; token counts from 10 by document and repeat."""
    perplexity = TASKS[task].kind == "perplexity"

    def line(i: int, r: int, score: float) -> dict:
        cut = score < 0 and not perplexity
        why = "loglikelihood" if perplexity else "correct" if score > 0 else "truncated" if cut else "wrong"
        return {
            "task": task, "doc_id": f"p{i:03d}", "repeat": r, "seed": sample_seed(0, task, f"p{i:03d}", r),
            "prompt_sha256": "0" * 64, "text": "a text", "n_tokens": 10 + i + r,
            "finish_reason": "length" if cut else "stop",
            "answer": None if cut or perplexity else "1" if score > 0 else "7",
            "target": None if perplexity else "1", "score": float(score) if perplexity else int(score > 0), "why": why,
        }  # fmt: skip

    return [line(i, r, score) for (i, r), score in np.ndenumerate(scores)]


def table_of(scores: np.ndarray) -> ScoreTable:
    """The table of one task's scores."""
    return Columns(samples_of("aime", scores)).table(scores.shape[1])
