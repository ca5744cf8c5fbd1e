"""Where the 95 % intervals cover less than that: few problems that are ever solved, or few that differ.

    python benchmarks/interval_coverage.py [--simulations 2000] [--resamples 5000] [-o FILE]

"one run", the interval of avg@k in ``reset eval``: a share of the problems has a chance of being solved drawn evenly
from 0 to 1, the others are never solved. With one sample a problem, the coverage of the same interval is summed over
the binomial distribution, so it is exact ("one sample"). "two runs", the interval of the difference of avg@k in
``reset compare``: a share of the problems has chances 0.5 - gain / 2 in run A and 0.5 + gain / 2 in B, the others 0.02
or 0.98 by lot in both. True values are the expectations, so other problems might have been drawn.

"below" and "above": how often the whole interval lies below or above the true value.
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
from resetcli.evaluation.resampling import bootstrap_interval
from resetcli.evaluation.statistics import clustered_interval

REPEATS = 8
ONE_RUN = ((30, 0.1), (30, 0.9), (120, 0.02), (120, 0.05), (120, 0.5), (198, 0.05))
"""(problems, share that can be solved)"""

ONE_SAMPLE = (30, 120, 198)
CHANCES = (0.02, 0.05, 0.1, 0.2, 0.5, 0.9, 0.98)
TWO_RUNS = ((10, 1.0, 0.8), (30, 0.1, 0.6), (120, 0.03, 0.6), (120, 1.0, 0.5), (198, 0.03, 0.8))
"""(problems, share that differs, gain)"""

Bounds = NDArray[np.float64]


def one_run(problems: int, share: float, simulations: int, rng: np.random.Generator) -> dict[str, Any]:
    """Coverage of ``clustered_interval``."""

    def draw() -> tuple[float, float]:
        chance = np.where(rng.random(problems) < share, rng.random(problems), 0.0)
        return clustered_interval(_samples(chance, rng).tolist())

    bounds = np.array([draw() for _ in range(simulations)])
    return {"problems": problems, "repeats": REPEATS, "can_be_solved": share, **summary(bounds, share / 2)}


def one_sample(problems: int) -> dict[str, Any]:
    """Exact coverage of ``clustered_interval`` with one sample a problem, by the chance of each to be solved."""
    from scipy.stats import binom

    right = range(problems + 1)
    bounds = np.array([clustered_interval([[1.0]] * n + [[0.0]] * (problems - n)) for n in right])
    weights = {p: binom.pmf(right, problems, p) for p in CHANCES}
    return {
        "problems": problems, "repeats": 1,
        "coverage": {str(p): round(float(w[_covers(bounds, p)].sum()), 4) for p, w in weights.items()},
        "lower_end": {"all right": round(bounds[-1][0], 4), "one wrong": round(bounds[-2][0], 4)},
    }  # fmt: skip


def two_runs(
    problems: int, share: float, gain: float, simulations: int, resamples: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Coverage of ``bootstrap_interval``."""

    def draw(seed: int) -> tuple[float, float]:
        either = np.where(rng.random(problems) < 0.5, 0.02, 0.98)
        differs = rng.random(problems) < share
        a, b = (_samples(np.where(differs, 0.5 + sign * gain / 2, either), rng).mean(1) for sign in (-1, 1))
        return bootstrap_interval(b - a, step=1 / REPEATS, resamples=resamples, seed=seed)

    bounds = np.array([draw(seed) for seed in range(simulations)])
    scenario = {"problems": problems, "repeats": REPEATS, "differ": share, "gain": gain}
    return {**scenario, **summary(bounds, share * gain)}


def _samples(chance: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    return (rng.random((len(chance), REPEATS)) < chance[:, None]).astype(float)


def _covers(bounds: Bounds, truth: float) -> NDArray[np.bool_]:
    low, high = bounds.T
    return (low - 1e-12 <= truth) & (truth <= high + 1e-12)


def summary(bounds: Bounds, truth: float) -> dict[str, float]:
    low, high = bounds.T
    return {
        "true": truth, "coverage": float(_covers(bounds, truth).mean()), "below": float((high < truth - 1e-12).mean()),
        "above": float((low > truth + 1e-12).mean()), "width": round(float((high - low).mean()), 4),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--resamples", type=int, default=5000)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    started, rng = time.perf_counter(), np.random.default_rng(0)
    document = {
        "bench": "interval_coverage", "simulations": args.simulations, "resamples": args.resamples,
        "one_run": [one_run(*scenario, args.simulations, rng) for scenario in ONE_RUN],
        "one_sample": [one_sample(problems) for problems in ONE_SAMPLE],
        "two_runs": [two_runs(*scenario, args.simulations, args.resamples, rng) for scenario in TWO_RUNS],
        "seconds": round(time.perf_counter() - started, 1), "versions": versions("resetcli", "numpy", "scipy"),
    }  # fmt: skip
    text = json.dumps(document, indent=1)
    if args.output is not None:
        args.output.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
