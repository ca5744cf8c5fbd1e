"""Decoding speed on a CPU: what NVFP4, batching, batch invariance and the ReSET policy cost or gain.

Each comparison runs A and B in turn, `--pairs` times, the order swapped from pair to pair, so that drift and
neighbours fall on both. A run decodes exactly `--tokens` tokens for each request (the end token is ignored) from a
short prompt; its time covers everything from the call to the last completion, prefill included. Speeds are medians
over the runs; a ratio is the median of the ratios within pairs, B over A. The goals are those of the project's
plan; a goal missed is written down as missed.

    python benchmarks/decode.py                     # the embedded model and an NVFP4 checkpoint of it
    python benchmarks/decode.py --bf16 DIR --nvfp4 DIR --only policy-batch8

Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROMPT = "Explain step by step how to add two fractions with different denominators."


@dataclass(frozen=True)
class Side:
    """One side of a comparison: which model, how many requests at once, which engine mode, which policy."""

    label: str
    model: str
    batch: int
    invariant: bool = True
    policy: str = "fixed"


@dataclass(frozen=True)
class Comparison:
    """B against A; ``goal`` is the least ratio of tokens/s, B over A."""

    name: str
    a: Side
    b: Side
    goal: float


COMPARISONS = (
    Comparison("nvfp4-vs-bf16", Side("BF16", "bf16", 1), Side("NVFP4", "nvfp4", 1), 0.85),
    Comparison("batch8-vs-batch1", Side("batch 1", "nvfp4", 1), Side("batch 8", "nvfp4", 8), 3.0),
    Comparison(
        "invariant-vs-not", Side("not invariant", "nvfp4", 1, invariant=False), Side("invariant", "nvfp4", 1), 0.9
    ),
    Comparison("policy-batch1", Side("fixed", "nvfp4", 1), Side("reset", "nvfp4", 1, policy="reset"), 0.97),
    Comparison("policy-batch8", Side("fixed", "nvfp4", 8), Side("reset", "nvfp4", 8, policy="reset"), 0.97),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the comparisons, print a table and write the JSON document; 0 also where a goal is missed."""
    options = parse(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    import torch

    torch.set_num_threads(options.threads)
    from resetcli.base.files import write_json
    from resetcli.base.versions import versions
    from resetcli.cuda.bench import describe_machine

    paths = model_paths(options)
    load = load_average()
    chosen = [c for c in COMPARISONS if not options.only or c.name in options.only]
    results = []
    for comparison in chosen:
        results.append(compare(comparison, paths, options))
        print(line(results[-1]), flush=True)
    document = {
        "bench": "decode",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": describe_machine(torch.device("cpu")),
        "load_before": load,
        "versions": versions(),
        "models": {kind: {"name": path.name, "fingerprint": fingerprint(path)} for kind, path in paths.items()},
        "method": {
            "tokens": options.tokens,
            "pairs": options.pairs,
            "threads": options.threads,
            "dtype": "float32",
            "prompt": PROMPT,
            "seed": options.seed,
            "speed": "generated tokens of all requests over wall time from call to last completion, prefill included",
            "ratio": "median over pairs of B over A within the pair; order swapped from pair to pair",
        },
        "comparisons": results,
    }
    write_json(options.output, document)
    print(f"written to {options.output}")
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bf16", type=Path, help="BF16 model directory (default: the embedded model)")
    parser.add_argument(
        "--nvfp4", type=Path, help="its NVFP4 checkpoint (default: the cached one of the embedded model)"
    )
    parser.add_argument("--only", action="append", choices=[c.name for c in COMPARISONS])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "results" / "decode-cpu.json")
    options = parser.parse_args(arguments)
    if min(options.tokens, options.pairs, options.threads) < 1:
        parser.error("--tokens, --pairs and --threads must be at least 1")
    return options


def model_paths(options: argparse.Namespace) -> dict[str, Path]:
    """Directories of the two models; the embedded one is converted and quantized on the spot where needed."""
    from resetcli.models.embedded import embedded_model_dir

    bf16 = options.bf16 or embedded_model_dir()
    if options.nvfp4:
        return {"bf16": bf16, "nvfp4": options.nvfp4}
    from resetcli.quantization.last import embedded_checkpoint

    return {"bf16": bf16, "nvfp4": embedded_checkpoint()}


def compare(comparison: Comparison, paths: dict[str, Path], options: argparse.Namespace) -> dict[str, Any]:
    """One comparison's record: speeds of each run, medians with spread, ratio against the goal."""
    engines: dict[tuple[str, int, bool], Any] = {}
    sides = (comparison.a, comparison.b)
    for side in sides:
        key = (side.model, side.batch, side.invariant)
        if key not in engines:
            engines[key] = open_side(side, paths)
    runs: dict[str, list[float]] = {"a": [], "b": []}
    run: dict[str, Callable[[int], float]] = {
        name: speed_of(engines[(side.model, side.batch, side.invariant)], side, paths, options)
        for name, side in zip("ab", sides, strict=True)
    }
    for name in "ab":
        run[name](min(options.tokens, 16))
    for pair in range(options.pairs):
        for name in "ab" if pair % 2 == 0 else "ba":
            runs[name].append(run[name](options.tokens))
    for engine in engines.values():
        engine.close()
    ratios = [b / a for a, b in zip(runs["a"], runs["b"], strict=True)]
    ratio = statistics.median(ratios)
    return {
        "name": comparison.name,
        "a": {"label": comparison.a.label, "batch": comparison.a.batch, "tokens_per_s": summary(runs["a"])},
        "b": {"label": comparison.b.label, "batch": comparison.b.batch, "tokens_per_s": summary(runs["b"])},
        "ratio": summary(ratios),
        "goal": comparison.goal,
        "met": ratio >= comparison.goal,
    }


def open_side(side: Side, paths: dict[str, Path]) -> Any:
    """The engine of a side: CPU, float32."""
    from resetcli.engines.factory import EngineOptions, open_engine

    return open_engine(
        EngineOptions(
            paths[side.model], device="cpu", dtype="float32", batch_size=side.batch, batch_invariant=side.invariant
        )
    )


def speed_of(engine: Any, side: Side, paths: dict[str, Path], options: argparse.Namespace) -> Callable[[int], float]:
    """A function that decodes n tokens for each request of ``side`` and returns tokens/s over all of them."""
    from resetcli.base.seeds import sample_seed
    from resetcli.engines.protocol import Request
    from resetcli.policy.config import load_config
    from resetcli.policy.settings import resolve_settings

    settings = resolve_settings(
        nvfp4=engine.info.nvfp4, model_name=engine.info.model, config=load_config(paths[side.model]),
        policy=side.policy, top_p=0.95,
    )  # fmt: skip
    prompt = tuple(engine.encode_chat([{"role": "user", "content": PROMPT}]))

    def run(tokens: int) -> float:
        requests = [
            Request(str(i), prompt, sample_seed(options.seed, "decode-bench", i), tokens, ignore_eos=True)
            for i in range(side.batch)
        ]
        start = time.perf_counter()
        done = list(engine.generate(requests, settings))
        seconds = time.perf_counter() - start
        made = [completion.n_tokens for completion in done]
        if made != [tokens] * side.batch:
            raise SystemExit(f"error: {side.label}: {tokens} tokens asked of each request, {made} came")
        return sum(made) / seconds

    return run


def summary(values: list[float]) -> dict[str, Any]:
    """Median, least, greatest and all values in order."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "all": values}


def line(result: dict[str, Any]) -> str:
    """One comparison as a line of text."""
    parts = [f"{result['name']:<18}"]
    for side in (result["a"], result["b"]):
        speed = side["tokens_per_s"]
        parts.append(f"{side['label']} {speed['median']:.1f} ({speed['min']:.1f} to {speed['max']:.1f}) tokens/s")
    ratio = result["ratio"]
    verdict = "met" if result["met"] else "MISSED"
    parts.append(f"ratio {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})")
    return "  ".join(parts) + f"  goal {result['goal']:g}: {verdict}"


def commit() -> dict[str, Any]:
    """The checkout's commit and whether tracked files differ from it; nulls outside a git checkout."""
    found = [
        subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=False)
        for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    ]
    if found[0].returncode:
        return {"id": None, "modified": None}
    return {"id": found[0].stdout.strip(), "modified": bool(found[1].stdout.strip())}


def load_average() -> float | None:
    """Runnable processes over the last minute, to show whether the machine was quiet."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def fingerprint(path: Path) -> str:
    """The model's fingerprint, as runs record it."""
    from resetcli.nvfp4.checkpoint import fingerprint as of_model

    return of_model(path)


if __name__ == "__main__":
    sys.exit(main())
