"""Whether `reset compare` says what it claims: coverage of its intervals and size of its p-values, on simulated runs.

    python benchmarks/compare_coverage.py [--simulations 1000] [-o FILE]

Each simulation draws new problems and two runs on them, and compares these as the command does. A problem's chance p of
being solved in run A is Beta(0.9, 0.9): many hard, many easy. In run B it is p + 4 p (1 - p) (g + e), where g is 0 or
2 d / c by lot (c = E[4 p (1 - p)]), so that d is the mean difference over all problems exactly, and e is plus or minus
``spread`` by lot: problems that change without any gain, which a test that takes samples for independent mistakes
for one. True differences of maj@k and pass@k come from 400,000 problems.

By metric: the share of 95 % intervals that cover the true difference, below and above it; the share of p-values at or
below 1, 5, 10 and 50 %, and where nothing differs the Kolmogorov-Smirnov distance of the p-values from uniform, with
what it may be at the 5 % level. Scores are whole numbers; with one sample a problem p-values come in steps, the larger
the fewer problems differ. "largest_step" is the largest share of simulations with one and the same p-value.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resetcli.base.versions import versions
from resetcli.evaluation.columns import ScoreTable
from resetcli.evaluation.paired import compare_pair
from resetcli.evaluation.statistics import majority_credits, passes

METRICS = ("avg@k", "maj@k", "pass@k")
SCENARIOS = (
    # problems, repeats, true difference, spread
    (120, 8, 0.0, 0.0),
    (120, 8, 0.0, 0.15),
    (120, 8, 0.055, 0.0),
    (198, 8, 0.0, 0.1),
    (198, 8, 0.03, 0.1),
    (120, 4, 0.0, 0.1),
    (120, 4, 0.04, 0.05),
    (120, 1, 0.0, 0.1),
    (120, 1, 0.04, 0.05),
    (30, 8, 0.0, 0.1),
    (30, 8, 0.04, 0.05),
    (30, 1, 0.04, 0.05),
)
SHAPE = 0.9


def simulate(
    problems: int, repeats: int, difference: float, spread: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Scores 0 and 1 of runs A and B on the same problems, [problems, repeats] each."""
    p = rng.beta(SHAPE, SHAPE, problems)
    c = 4 * SHAPE**2 / (2 * SHAPE * (2 * SHAPE + 1))
    gain = rng.choice([0.0, 2.0], problems) * difference / c + rng.choice([-1.0, 1.0], problems) * spread
    after = p + 4 * p * (1 - p) * gain
    if 4 * (2 * difference / c + spread) > 1 + 1e-9:
        raise ValueError("chances would leave [0, 1]")
    shape = (problems, repeats)
    return (rng.random(shape) < p[:, None]).astype(int), (rng.random(shape) < after[:, None]).astype(int)


def as_table(scores: NDArray[np.int64], rng: np.random.Generator) -> ScoreTable:
    """The scores with votes: a wrong sample votes for one of four wrong answers, the first as often as not."""
    votes = np.where(scores == 1, 1, rng.choice([2, 3, 4, 5], scores.shape, p=[0.5, 0.2, 0.2, 0.1]))
    nothing = np.zeros(scores.shape, bool)
    return ScoreTable(
        list(range(len(scores))), scores.astype(float), votes, np.where(scores == 1, 0, 1).astype(np.int8),
        np.full(scores.shape, 100), nothing,
    )  # fmt: skip


def true_differences(repeats: int, difference: float, spread: float, problems: int) -> dict[str, float]:
    if repeats == 1 or difference == spread == 0:
        return dict.fromkeys(METRICS, difference)
    rng = np.random.default_rng(12345)
    a, b = (as_table(s, rng) for s in simulate(problems, repeats, difference, spread, rng))
    return {
        "avg@k": difference,
        "maj@k": float((majority_credits(b) - majority_credits(a)).mean()),
        "pass@k": float((passes(b, repeats) - passes(a, repeats)).mean()),
    }


def run(
    scenario: tuple[int, int, float, float], number: int, simulations: int, resamples: int, problems: int = 400_000
) -> dict[str, Any]:
    docs, repeats, difference, spread = scenario
    truth = true_differences(repeats, difference, spread, problems)
    found: dict[str, list[tuple[float, float, float, float]]] = {metric: [] for metric in METRICS}
    for i in range(simulations):
        rng = np.random.default_rng([number, i])
        a, b = (as_table(scores, rng) for scores in simulate(docs, repeats, difference, spread, rng))
        compared = compare_pair(a, b, resamples=resamples, seed=i)["differences"]
        for metric in METRICS:
            d = compared[metric]
            found[metric].append((*d["ci95"], d["p"], d["detectable"]))
    return {
        "problems": docs, "repeats": repeats, "difference": difference, "spread": spread,
        "metrics": {m: summary(np.array(rows), truth[m]) for m, rows in found.items()},
    }  # fmt: skip


def summary(rows: NDArray[np.float64], truth: float) -> dict[str, Any]:
    low, high, p, detectable = rows.T
    below, above = float((high < truth - 1e-12).mean()), float((low > truth + 1e-12).mean())
    result: dict[str, Any] = {
        "true": truth, "coverage": round(1 - below - above, 4), "interval_below": below, "interval_above": above,
        "width": float((high - low).mean()), "detectable": float(detectable.mean()),
        "p_at_most": {str(level): float((p <= level).mean()) for level in (0.01, 0.05, 0.1, 0.5)},
    }  # fmt: skip
    if truth == 0:
        values, counts = np.unique(p, return_counts=True)
        reached = np.cumsum(counts) / len(p)
        result["ks_distance"] = float(
            max(np.abs(reached - values).max(), np.abs(reached - counts / len(p) - values).max())
        )
        result["ks_bound_5_percent"] = round(1.358 / len(p) ** 0.5, 4)
        result["largest_step"] = float(counts.max() / len(p))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--resamples", type=int, default=5000)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    started, rows = time.perf_counter(), []
    for number, scenario in enumerate(SCENARIOS):
        rows.append(run(scenario, number, args.simulations, args.resamples))
        row = rows[-1]
        covered = ", ".join(f"{m} {v['coverage']:.3f}" for m, v in row["metrics"].items())
        print(f"{scenario}: {covered}; p <= 0.05: {row['metrics']['avg@k']['p_at_most']['0.05']:.3f}", flush=True)
    document = {
        "bench": "compare_coverage", "simulations": args.simulations, "resamples": args.resamples, "rows": rows,
        "seconds": round(time.perf_counter() - started, 1), "versions": versions("resetcli", "numpy", "scipy"),
    }  # fmt: skip
    text = json.dumps(document, indent=1)
    if args.output is not None:
        args.output.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
