"""Decoding speed on a CPU: what NVFP4, batching, batch invariance and the ReSET policy cost or gain.

Each comparison makes `--pairs` pairs. In a pair A and B decode `--tokens` tokens for each request, in turns of
`--turn` tokens (A B, B A, A B ...; the next pair begins with B A), so that a neighbour's load of some seconds falls on
both. A turn starts from the same short prompt with seeds of its own and ignores the end token; the time spent reading
prompts is taken off, since short turns would read them more often than a user does, and the token that comes out of
it is not counted. A side's speed in a pair is its tokens over its seconds, all turns together; the ratio is that of
the pair, B over A, and the result its median over pairs. Every turn's figures are kept. The goals are those of the
project's plan; a goal missed is written down as missed.

    python benchmarks/decode.py                     # the embedded model and an NVFP4 checkpoint of it
    python benchmarks/decode.py --bf16 DIR --nvfp4 DIR --only policy-batch8

Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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


@dataclass(frozen=True)
class Turn:
    """Tokens decoded for all requests in one turn, the seconds that took, and the seconds of prefill beside them."""

    tokens: int
    seconds: float
    prefill_seconds: float


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
    from resetcli.cuda.machine import describe_machine

    paths = model_paths(options)
    load = load_average()
    chosen = [c for c in COMPARISONS if not options.only or c.name in options.only]
    results = []
    for comparison in chosen:
        results.append(compare(comparison, paths, options))
        print(line(results[-1]), flush=True)
    document: dict[str, Any] = {
        "bench": "decode",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": describe_machine(torch.device("cpu")),
        "load_before": load,
        "load_after": load_average(),
        "versions": versions(),
        "models": {kind: {"name": path.name, "fingerprint": fingerprint(path)} for kind, path in paths.items()},
        "method": {
            "tokens": options.tokens,
            "pairs": options.pairs,
            "threads": options.threads,
            "dtype": "float32",
            "prompt": PROMPT,
            "seed": options.seed,
            "turn": options.turn,
            "speed": "tokens decoded for all requests over wall time without prefill, summed over a pair's turns",
            "ratio": "median over pairs of B over A within the pair; order swapped from turn to turn and pair to pair",
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
    parser.add_argument("--turn", type=int, default=64, help="tokens that A or B decodes before the other's turn")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "results" / "decode-cpu.json")
    options = parser.parse_args(arguments)
    if min(options.pairs, options.threads) < 1 or min(options.tokens, options.turn) < 2:
        parser.error("--pairs and --threads must be at least 1, --tokens and --turn at least 2")
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
    """One comparison's record: speeds by pair, medians with spread, ratio against the goal, every turn."""
    engines: dict[tuple[str, int, bool], Any] = {}
    sides = (comparison.a, comparison.b)
    for side in sides:
        key = (side.model, side.batch, side.invariant)
        if key not in engines:
            engines[key] = open_side(side, paths)
    decode = {
        name: decoder(engines[(side.model, side.batch, side.invariant)], side, paths, options)
        for name, side in zip("ab", sides, strict=True)
    }
    for name in "ab":
        decode[name](min(options.tokens, 16), 0)
    pairs = [
        run_pair(decode, turns(options.tokens, options.turn), first="ab"[number % 2], number=number)
        for number in range(options.pairs)
    ]
    for engine in engines.values():
        engine.close()
    speeds, ratio = speeds_and_ratio(pairs)
    return {
        "name": comparison.name,
        "a": {"label": comparison.a.label, "batch": comparison.a.batch, "tokens_per_s": speeds["a"]},
        "b": {"label": comparison.b.label, "batch": comparison.b.batch, "tokens_per_s": speeds["b"]},
        "ratio": ratio,
        "goal": comparison.goal,
        "met": ratio["median"] >= comparison.goal,
        "turns": [{name: [vars(turn) for turn in side] for name, side in pair.items()} for pair in pairs],
    }


def turns(tokens: int, most: int) -> list[int]:
    """``tokens`` in nearly equal turns of at most ``most`` and at least 2.

    >>> turns(256, 64), turns(100, 64), turns(4, 64), turns(5, 2)
    ([64, 64, 64, 64], [50, 50], [4], [3, 2])
    """
    count = min(-(-tokens // most), tokens // 2)
    return [tokens // count + (i < tokens % count) for i in range(count)]


def run_pair(
    decode: dict[str, Callable[[int, int], Turn]], lengths: list[int], *, first: str, number: int
) -> dict[str, list[Turn]]:
    """Both sides' turns, taken in alternation: ``first`` has the first turn, and the order is swapped each time."""
    pair: dict[str, list[Turn]] = {"a": [], "b": []}
    order = "ab" if first == "a" else "ba"
    for at, length in enumerate(lengths):
        for name in order if at % 2 == 0 else reversed(order):
            pair[name].append(decode[name](length, 1 + number * len(lengths) + at))
    return pair


def speed(side: list[Turn]) -> float:
    """Tokens per second of all turns together."""
    return sum(turn.tokens for turn in side) / sum(turn.seconds for turn in side)


def speeds_and_ratio(pairs: list[dict[str, list[Turn]]]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Summaries over pairs of each side's speed, and of B's over A's within the pair."""
    speeds = {name: [speed(pair[name]) for pair in pairs] for name in "ab"}
    ratios = [b / a for a, b in zip(speeds["a"], speeds["b"], strict=True)]
    return {name: summary(values) for name, values in speeds.items()}, summary(ratios)


def open_side(side: Side, paths: dict[str, Path]) -> Any:
    """The engine of a side: CPU, float32."""
    from resetcli.engines.factory import EngineOptions, open_engine

    return open_engine(
        EngineOptions(
            paths[side.model], device="cpu", dtype="float32", batch_size=side.batch, batch_invariant=side.invariant
        )
    )


def decoder(engine: Any, side: Side, paths: dict[str, Path], options: argparse.Namespace) -> Callable[[int, int], Turn]:
    """A function that decodes n tokens for each request of ``side``; its second argument tells turns apart."""
    from resetcli.base.seeds import sample_seed
    from resetcli.engines.protocol import Request
    from resetcli.policy.config import load_config
    from resetcli.policy.settings import resolve_settings

    settings = resolve_settings(
        nvfp4=engine.info.nvfp4, model_name=engine.info.model, config=load_config(paths[side.model]),
        policy=side.policy, top_p=0.95,
    )  # fmt: skip
    prompt = tuple(engine.encode_chat([{"role": "user", "content": PROMPT}]))

    def run(tokens: int, turn: int) -> Turn:
        requests = [
            Request(str(i), prompt, sample_seed(options.seed, "decode-bench", i, turn), tokens, ignore_eos=True)
            for i in range(side.batch)
        ]
        with prefill_clock(engine.runner) as prefill:
            start = time.perf_counter()
            done = list(engine.generate(requests, settings))
            seconds = time.perf_counter() - start
        made = [completion.n_tokens for completion in done]
        if made != [tokens] * side.batch:
            raise SystemExit(f"error: {side.label}: {tokens} tokens asked of each request, {made} came")
        return Turn(sum(made) - len(made), seconds - sum(prefill), sum(prefill))

    return run


@contextlib.contextmanager
def prefill_clock(runner: Any) -> Iterator[list[float]]:
    """Seconds of each ``runner.prefill`` in the block (an engine reads all prompts of a batch before it decodes)."""
    found: list[float] = []
    plain = runner.prefill

    def timed(*args: Any, **more: Any) -> Any:
        start = time.perf_counter()
        try:
            return plain(*args, **more)
        finally:
            found.append(time.perf_counter() - start)

    runner.prefill = timed
    try:
        yield found
    finally:
        del runner.prefill


def summary(values: list[float]) -> dict[str, Any]:
    """Median, least, greatest and all values in order."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "all": values}


def line(result: dict[str, Any]) -> str:
    """One comparison as a line of text."""
    parts = [f"{result['name']:<18}"]
    for side in (result["a"], result["b"]):
        rate = side["tokens_per_s"]
        parts.append(f"{side['label']} {rate['median']:.1f} ({rate['min']:.1f} to {rate['max']:.1f}) tokens/s")
    ratio = result["ratio"]
    verdict = "met" if result["met"] else "MISSED"
    parts.append(f"ratio {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})")
    return "  ".join(parts) + f"  goal {result['goal']:g}: {verdict}"


def commit() -> dict[str, Any]:
    """The checkout's commit and whether tracked files differ from it; nulls outside a git checkout."""
    found = [
        subprocess.run(["git", "--no-optional-locks", *words], cwd=HERE, capture_output=True, text=True, check=False)
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
