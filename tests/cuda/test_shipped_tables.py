"""Tables that ship: whole, of kernels that this version has, measured with BF16 beside."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import pytest
import torch

import resetcli.cuda.kernel_table as module
from resetcli.cuda.dispatch import Dispatcher, Target
from resetcli.cuda.families import families
from resetcli.cuda.kernel_table import load_table
from resetcli.cuda.shapes import PAPER

FILES = sorted((Path(module.__file__).parent / "tables").glob("*.json"))


def test_an_h200s_is_there():
    assert module.shipped_path("NVIDIA H200") in FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_choice_is_one_that_this_version_runs(path):
    table = load_table(path)
    arch, multiprocessors = table.about["arch"], table.about["multiprocessors"]
    known = {family.name: family for family in families()}
    for key, entry in table.entries.items():
        assert entry.bf16_us and entry.choices
        assert [choice.us for choice in entry.choices] == sorted(choice.us for choice in entry.choices)
        for choice in entry.choices:
            family = known[choice.family]
            configs = family.configs(key.m, key.n, key.k, multiprocessors, key.activations)
            assert choice.config in configs, (key, choice)
            assert choice.alone is None or choice.alone in configs, (key, choice)
            assert family.supports(arch, key.m, key.n, key.k, getattr(torch, key.dtype), key.activations)[0]
        best = entry.choices[0]
        assert known[best.family].steady(best.config, key.m, key.n, key.k, multiprocessors), (key, best)
    for shape in PAPER:
        assert {key.m for key in table.entries if (key.n, key.k) == (shape.n, shape.k)} >= {1, 2, 4, 8}


@pytest.mark.parametrize("m", [1, 2])
def test_the_cost_model_mostly_agrees_with_what_an_h200_measured(m):
    """Rows, chunks in flight and the cut of K, of the configurations in the shipped table."""
    gemv = next(f for f in families() if f.name == "gemv")
    cut = ("rows", "depth", "split", "ranks")
    agrees = []
    table = load_table(module.shipped_path("NVIDIA H200"))
    for key, entry in table.entries.items():
        if key.m == m and key.activations == "w4a4":
            tuned = next(choice.config for choice in entry.choices if choice.family == "gemv")
            guess = gemv.configs(m, key.n, key.k, table.about["multiprocessors"], "w4a4")[0]
            agrees.append(all(tuned[name] == guess[name] for name in cut))
    assert len(agrees) >= 15 and sum(agrees) >= 0.7 * len(agrees), (sum(agrees), len(agrees))


@pytest.mark.parametrize(
    ("name", "activations", "cut", "share"),
    [("mma", "w4a4", ("rows", "split", "ranks", "depth"), 0.45), ("mma", "w4a16", ("rows", "split", "ranks"), 0.45),
     ("gemv", "w4a16", ("split", "ranks", "vec"), 0.65)],
)  # fmt: skip
def test_cost_models_of_other_families_agree_as_often(name, activations, cut, share):
    table = load_table(module.shipped_path("NVIDIA H200"))
    each = next(f for f in families() if f.name == name)
    agrees = []
    for key, entry in table.entries.items():
        tuned = [choice.config for choice in entry.choices if choice.family == name]
        if key.m <= 64 and key.activations == activations and tuned:
            guess = each.configs(key.m, key.n, key.k, table.about["multiprocessors"], activations)[0]
            agrees.append(all(tuned[0].get(part) == guess.get(part) for part in cut))
    assert len(agrees) >= 45 and sum(agrees) >= share * len(agrees), (sum(agrees), len(agrees))


def test_families_as_the_cost_models_rank_them_are_nearly_the_fastest():
    """Each family in its tuned configuration: what is lost by choosing one without a table, by kind and M."""
    table = load_table(module.shipped_path("NVIDIA H200"))
    blind = Dispatcher(notify=lambda message: None)
    where = Target("a GPU without a table", table.about["arch"], table.about["multiprocessors"])
    lost = defaultdict(list)
    for key, entry in table.entries.items():
        plan = blind.plan(where, key.m, key.n, key.k, getattr(torch, key.dtype), key.activations)
        assert plan.source == "cost model"
        timed = {choice.family: choice.us for choice in entry.choices}
        lost[key.activations, key.m].append(math.log(timed[plan.family.name] / min(timed.values())))
    assert len(lost) == 18
    for kind, logs in lost.items():
        assert math.exp(sum(logs) / len(logs)) < 1.08, kind
