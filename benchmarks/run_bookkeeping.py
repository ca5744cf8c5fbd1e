"""What an evaluation run costs beside generating: time at 1,000 samples, memory at 100,000; one JSON document.

    python benchmarks/run_bookkeeping.py [--parts memory,time] [--samples 1000] [--tokens 64] [--many 100000] [-o FILE]

Time: a run of GSM8K-like problems of our own on the embedded model (CPU, float32), and of its wall time, model loading
apart, all that passes outside the engine: lm-eval's own work, scoring, writing and flushing each sample. Memory: peak
resident set of processes that handle so many synthetic samples of some 4 kB, one step each: write and score them, open
the run and make its statistics, score it again, write its report; and how much a whole run through lm-eval grows from
a tenth of them to all. torch and lm-eval themselves take several hundred MB, so for the last only growth is told.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from resetcli.base.versions import versions

DOCS, SEED = 1000, 0
SETTINGS = {"model_fingerprint": "0" * 64, "think_markers": ["<think>", "</think>"], "limit": None, "doc_ids": None,
            "seed": SEED, "max_new_tokens": 32768}  # fmt: skip


def outputs(i: int) -> tuple[str, str, str]:
    """(text, target, finish reason) of the i-th synthetic output."""
    thought = f"<think>\n{'Step by step, then on to the next. ' * 110}{i}\n</think>\n"
    if i % 7 == 0:
        return thought[:-10], str(i % 1000), "length"
    return f"{thought}So the answer is \\boxed{{{i % 1000 if i % 3 else i % 10}}}.", str(i % 1000), "stop"


def write(path: Path, many: int) -> None:
    """All samples scored and written, as a run's recorder does."""
    from resetcli.base.seeds import sample_seed
    from resetcli.evaluation.judge import Judge
    from resetcli.evaluation.runs import RunFolder
    from resetcli.evaluation.tasks import resolve_tasks

    judge, repeats = Judge(resolve_tasks("gsm8k"), ("<think>", "</think>")), many // DOCS
    with RunFolder(path, SETTINGS, repeats=repeats) as folder:
        folder.begin({
            "run": 1, "model": {"name": "synthetic", "path": "", "fingerprint": "0" * 64},
            "policy": {"name": "fixed"}, "sampling": {"max_new_tokens": 32768, "by_task": {}}, "seed": SEED,
            "tasks": {"gsm8k": {"version": 1, "data_sha256": "0" * 64, "documents": DOCS}},
            "alt_answers": {"gsm8k": {}}, "limited": False, "batch_invariant": True, "engine": {"context": 40960},
            "conditions": {"versions": {}, "threads": 1, "batch_size": 8},
        })  # fmt: skip
        for i in range(many):
            doc_id, repeat = str(i % DOCS), i // DOCS
            text, _, reason = outputs(i)
            target = str(int(doc_id))
            score = judge.score("gsm8k", {"target": target}, text, reason, opened_in_prompt=False)
            folder.add({
                "task": "gsm8k", "doc_id": doc_id, "repeat": repeat, "seed": sample_seed(SEED, "gsm8k", doc_id, repeat),
                "prompt_sha256": "0" * 64, "text": text, "n_tokens": 100 + i % 5000, "finish_reason": reason,
                "answer": score.answer, "target": target, "score": score.score, "why": score.why,
                "prompt": f"Problem {doc_id}.",
            })  # fmt: skip


def statistics(path: Path, many: int) -> None:
    """The run opened as for going on, and its results made."""
    from resetcli.evaluation.results import own_results
    from resetcli.evaluation.runs import RunFolder
    from resetcli.evaluation.selection import Selection
    from resetcli.evaluation.tasks import resolve_tasks

    (spec,) = resolve_tasks("gsm8k")
    with RunFolder(path, SETTINGS, repeats=many // DOCS) as folder:
        own = own_results(folder, spec, {}, many // DOCS, Selection())
        folder.finish({"results": {"gsm8k": own}, "limit": None, "doc_ids": None, "context": 40960, "timing": {}})


def score(path: Path, many: int) -> None:
    """`reset score` of the run, lines and all."""
    from resetcli.evaluation.rescore import rescore_run

    found = rescore_run(path)
    assert not found.changed and sum(1 for _ in found.lines()) == many


def report(path: Path, many: int) -> None:
    """The run's page."""
    from resetcli.evaluation.report.write import write_report

    write_report(path)


def whole(path: Path, many: int) -> None:
    """A run through lm-eval on an engine that answers at once."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "evaluation"))
    from evaluation_double import FIXED, SeededEngine
    from transformers import AutoTokenizer

    from resetcli.data.sources import DataSource
    from resetcli.evaluation.evaluate import run_eval
    from resetcli.models.embedded import embedded_model_dir

    tokenizer = AutoTokenizer.from_pretrained(embedded_model_dir())
    data = path / "data"
    data.mkdir()
    rows = ({"question": f"What is {i} + {i}?", "answer": f"#### {2 * i}"} for i in range(DOCS))
    (data / "gsm8k_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    engine = SeededEngine(tokenizer, batch=8)
    run_eval(lambda: engine, "gsm8k", DataSource(data), FIXED, model="d", fingerprint="f" * 64,
             repeats=many // DOCS, max_new_tokens=20, output=path / "run", max_failed=1.0)  # fmt: skip


STEPS = {"write": write, "statistics": statistics, "score": score, "report": report, "whole": whole}


def measured(step: str, path: Path, many: int) -> dict[str, Any]:
    """Seconds and peak resident MB of one step in a process of its own."""
    command = [sys.executable, __file__, "--step", step, "--path", str(path), "--many", str(many)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def memory(many: int) -> dict[str, Any]:
    """Every step at a tenth of ``many`` samples and at all."""
    found: dict[str, Any] = {}
    for count in (many // 10, many):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            steps = {step: measured(step, path, count) for step in ("write", "statistics", "score", "report")}
            sizes = {f"{name}_mb": (path / name).stat().st_size / 2**20 for name in ("samples.jsonl", "report.html")}
        with tempfile.TemporaryDirectory() as folder:
            steps["whole"] = measured("whole", Path(folder), count)
        found[str(count)] = {**steps, **{name: round(size, 1) for name, size in sizes.items()}}
    few, all_ = (found[str(count)]["whole"]["peak_mb"] for count in (many // 10, many))
    return {**found, "whole_growth_mb": round(all_ - few, 1)}


def timed_run(samples: int, tokens: int) -> dict[str, Any]:
    """A real run on the embedded model: its wall time after loading, and how much of it passed outside the engine."""
    from resetcli.data.sources import DataSource
    from resetcli.engines.factory import EngineOptions, open_engine
    from resetcli.evaluation.evaluate import run_eval
    from resetcli.models.embedded import embedded_model_dir
    from resetcli.policy.settings import PolicySettings

    engine = open_engine(EngineOptions(path=embedded_model_dir(), device="cpu", batch_size=8))
    inside = 0.0
    generate = engine.generate

    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        stream = generate(*args, **kwargs)
        try:
            while True:
                started = time.perf_counter()
                try:
                    done = next(stream)
                except StopIteration:
                    return
                finally:
                    inside += time.perf_counter() - started
                yield done
        finally:
            stream.close()

    engine.generate = watched  # type: ignore[method-assign]
    repeats = 8
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        rows = (
            {"question": f"A farm has {3 * i} hens and sells {i}. How many are left?", "answer": f"#### {2 * i}"}
            for i in range(samples // repeats)
        )
        (data / "gsm8k_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        import lm_eval.evaluator  # noqa: F401  loaded once, like the model

        started = time.perf_counter()
        found = run_eval(
            lambda: engine, "gsm8k", DataSource(data), PolicySettings(name="fixed"), model="embedded",
            fingerprint="0" * 64, repeats=repeats, max_new_tokens=tokens, output=Path(folder) / "run", max_failed=1.0,
        )  # fmt: skip
        seconds = time.perf_counter() - started
    timing = found["timing"]
    return {
        "samples": timing["samples_made"], "tokens_a_sample": found["results"]["gsm8k"]["tokens_mean"],
        "seconds": round(seconds, 2), "outside_the_engine_seconds": round(seconds - inside, 2),
        "outside_share": round((seconds - inside) / seconds, 5),
        "scoring_and_storing_seconds": round(timing["bookkeeping_seconds"], 3),
        "scoring_and_storing_ms_a_sample": round(1e3 * timing["bookkeeping_seconds"] / timing["samples_made"], 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="memory,time", type=lambda text: text.split(","))
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    if args.step:
        started = time.perf_counter()
        STEPS[args.step](args.path, args.many)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": round(time.perf_counter() - started, 1), "peak_mb": round(peak, 1)}))
        return
    document: dict[str, Any] = {"bench": "run bookkeeping"}
    if "memory" in args.parts:
        document["memory"] = memory(args.many)
    if "time" in args.parts:
        document["time"] = timed_run(args.samples, args.tokens)
    document["versions"] = versions()
    text = json.dumps(document, indent=2) + "\n"
    if args.output:
        args.output.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
