"""Tuning without a GPU: what is kept of the times, and what is said where nothing can be tuned."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from resetcli.cuda.dispatch import Plan
from resetcli.cuda.driver import KernelsUnavailable
from resetcli.cuda.families import families
from resetcli.cuda.kernel_table import Timed
from resetcli.cuda.shapes import Shape
from resetcli.cuda.tune import best_of, tune


def test_the_fastest_of_each_family_is_kept_in_order():
    first, second = families()[:2]
    plan = Plan(first, {"width": 1}, False, "int8", "tuning")
    times = [
        (plan, 5.0),
        (dataclasses.replace(plan, config={"width": 2}, pdl=True), 4.0),
        (dataclasses.replace(plan, family=second, config={"split": 8}), 3.00049),
        (dataclasses.replace(plan, config={"width": 3}), 4.5),
    ]
    assert best_of(times) == [
        Timed(second.name, {"split": 8}, False, 3.0),
        Timed(first.name, {"width": 2}, True, 4.0),
    ]
    assert best_of([]) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_kernels_is_told_why():
    with pytest.raises(KernelsUnavailable, match="nothing to tune: torch") as caught:
        tune([Shape(64, 64)], [1])
    assert "\n" not in str(caught.value)
