"""Temperatures against the scalar oracle.

Rules: requests join and leave slots at random, only some of the active ones step at a time, in random order;
entropies are chosen to hurt (ties, zeros, constants, half ticks, the very threshold and one tick beside it, the
running means); what is compared is compared exactly. RESET_HISTORIES sets the number of histories per policy and
estimator (14 pairs; the default makes 10,000 in all).
"""

from __future__ import annotations

import math
import os
import random

import pytest
import torch
from oracle import Oracle

from resetcli.base.errors import UsageError
from resetcli.policy.boundaries import BoundaryTable
from resetcli.policy.settings import PolicySettings
from resetcli.policy.stepper import StepPolicy

VOCABULARY = [
    b"a", b"bc", b".", b"\n", b"\r", b"\n\n", b".\n", b"\r\n", b"\r\n\r\n", b"\n\r", b"x\n\ny", b"\n\n\n", b"",
]  # fmt: skip
TABLE = BoundaryTable.from_bytes(VOCABULARY)
TICK = 2.0**-22
PAIRS = [(name, e) for name in ("reset", "step-relative", "uniform-low") for e in ("hybrid", "causal", "window", "ema")]
PAIRS += [("fixed-threshold", "hybrid"), ("sliding-window", "hybrid")]
HISTORIES = int(os.environ.get("RESET_HISTORIES", "715"))


class Request:
    def __init__(self, rng: random.Random, settings: PolicySettings) -> None:
        self.oracle = Oracle(
            settings.name, settings.estimator, settings.tau_0 or 0.0, settings.t_low, settings.t_high, settings.window
        )
        self.left = rng.choice((1, 2, 5, 20, 40, rng.randrange(1, 120)))
        self.kind = rng.choice(("any", "constant", "few", "near", "means", "half", "large"))
        self.constant = rng.choice((0.0, 0.1, 0.6, 1 / 3, rng.random() * 4))
        self.newlines = rng.choice((0.0, 0.1, 0.6))
        self.last: int = -1

    def entropy(self, rng: random.Random, tau_0: float) -> float:
        if self.kind == "constant":
            return self.constant
        if self.kind == "few":
            return rng.choice((0.0, self.constant, tau_0))
        if self.kind == "near":
            return max(0.0, tau_0 + rng.choice((-1, 0, 1, -0.5, 0.5)) * TICK)
        if self.kind == "half":
            return (rng.randrange(8) + 0.5) * TICK
        if self.kind == "large":
            return rng.random() * 16
        if self.kind == "means" and self.oracle.seen:
            window = self.oracle.seen[-self.oracle.window :]
            pool = rng.choice((self.oracle.seen, window, self.oracle.in_step or window))
            return max(0.0, (sum(pool) / len(pool) + rng.choice((-1, 0, 0, 1))) * TICK)
        return rng.random() * rng.choice((0.01, 1.0, 4.0))

    def token(self, rng: random.Random) -> int:
        return rng.randrange(3, len(VOCABULARY)) if rng.random() < self.newlines else rng.randrange(3)


def same(actual: torch.Tensor | None, row: int, expected) -> bool:
    if actual is None:
        return expected is None
    value = actual[row].item()
    if expected is None:
        return math.isnan(value)
    return value == float(expected)


def mismatches(settings: PolicySettings, histories: int, rng: random.Random, slots: int = 48) -> tuple[int, int]:
    """(rows that differ from the oracle, rows compared)."""
    policy = StepPolicy(settings, TABLE, slots)
    active: dict[int, Request] = {}
    begun = wrong = rows = 0
    steps_known = settings.needs_steps
    while begun < histories or active:
        free = [slot for slot in range(slots) if slot not in active]
        rng.shuffle(free)
        joining = free[: min(len(free), histories - begun)]
        if joining:
            policy.join(torch.tensor(joining))
            active.update((slot, Request(rng, settings)) for slot in joining)
            begun += len(joining)
        chosen = [slot for slot in active if rng.random() < 0.9]
        if not chosen:
            continue
        rng.shuffle(chosen)
        entropies = [active[slot].entropy(rng, settings.tau_0 or 0.0) for slot in chosen]
        lasts = [active[slot].last for slot in chosen]
        out = policy.step(torch.tensor(chosen), torch.tensor(entropies, dtype=torch.float64), torch.tensor(lasts))
        shown = (out.temperature, out.entropy, out.step_entropy, out.global_mean, out.uncertain, out.tau)
        assert not out.failed.any()
        for row, (slot, entropy) in enumerate(zip(chosen, entropies, strict=True)):
            request = active[slot]
            want = request.oracle.next(entropy, None if request.last < 0 else VOCABULARY[request.last])
            temperature = torch.tensor(want.temperature, dtype=torch.float32).item()
            expected = (temperature, want.entropy, want.step_entropy, want.global_mean, want.uncertain, want.tau)
            good = all(same(a, row, e) for a, e in zip(shown, expected, strict=True))
            if steps_known:
                good = good and same(out.step, row, want.step) and same(out.boundary, row, want.boundary)
            wrong += not good
            rows += 1
            request.last = request.token(rng)
            request.left -= 1
            if request.left == 0 or rng.random() < 0.005:
                del active[slot]
    return wrong, rows


@pytest.mark.parametrize(("name", "estimator"), PAIRS)
def test_random_histories_equal_the_oracle(name: str, estimator: str) -> None:
    rng = random.Random(f"{name} {estimator}")
    total = 0
    for window in (1, 2, 3, 7, 32):
        tau_0 = rng.choice((0.6, 0.5505, 0.0, 3 * TICK, 3.4 * TICK)) if window < 32 else 0.6
        settings = PolicySettings(name=name, estimator=estimator, tau_0=tau_0, t_low=0.1, window=window)
        wrong, rows = mismatches(settings, HISTORIES // 5, rng)
        assert wrong == 0
        total += rows
    assert total > HISTORIES * 5


def test_the_printed_numbers_recompute_every_temperature() -> None:
    """From entropies and boundaries alone, in plain float64, as the trace's reader would."""
    settings = PolicySettings(tau_0=0.6, window=4)
    policy, rng = StepPolicy(settings, TABLE, 1), random.Random(3)
    policy.join(torch.tensor([0]))
    last, seen, step = -1, [], []
    for _ in range(400):
        entropy = torch.tensor([rng.choice((0.6, rng.random()))], dtype=torch.float64)
        out = policy.step(torch.tensor([0]), entropy, torch.tensor([last]))
        h = out.entropy.item()
        if out.boundary.item():
            step = []
        near = step if len(step) >= 4 else seen[-4:]
        estimate = sum(near) / len(near) if near else h
        overall = sum(seen) / len(seen) if seen else h
        assert out.step_entropy.item() == estimate and out.global_mean.item() == overall
        assert out.tau.item() == (estimate if out.uncertain.item() else 0.6)
        assert out.temperature.item() == pytest.approx(0.1 if h < out.tau.item() else 1.0)
        seen.append(h)
        step.append(h)
        last = rng.choice((0, 0, 0, 3, 5))


def test_sums_stay_exact_to_the_longest_request() -> None:
    """2^18 tokens of the largest entropy: the cross products still fit, and a tie is still a tie."""
    settings = PolicySettings(tau_0=0.6, window=32)
    policy = StepPolicy(settings, TABLE, 2)
    slots = torch.tensor([0, 1])
    policy.join(slots)
    n, units = 2**18 - 1, int(15.9 * 2**22)
    policy._state[0, :] = policy._state[1, :] = units * n
    policy._state[1, 1] += 1  # the step's sum alone: one unit above the tie
    policy._state[3, :] = policy._state[4, :] = n
    out = policy.step(slots, torch.full((2,), 15.9, dtype=torch.float64), torch.tensor([0, 0]))
    assert out.uncertain.tolist() == [False, True]


def test_a_nan_row_fails_alone_and_leaves_its_state() -> None:
    settings = PolicySettings(tau_0=0.6, window=3)
    for estimator in ("hybrid", "ema"):
        settings = PolicySettings(tau_0=0.6, window=3, estimator=estimator)
        policy, control = StepPolicy(settings, TABLE, 3), StepPolicy(settings, TABLE, 3)
        slots = torch.arange(3)
        policy.join(slots)
        control.join(slots)
        for t in range(9):
            h = torch.tensor([0.3, 0.9, 1.5], dtype=torch.float64) / (t + 1)
            last = torch.tensor([-1, -1, -1] if t == 0 else [3, 5, 0])
            if t == 4:
                bad = h.clone()
                bad[1] = math.nan
                bad[2] = math.inf
                out = policy.step(slots, bad, last)
                want = control.step(slots[:1], h[:1], last[:1])
                assert out.failed.tolist() == [False, True, True]
                assert out.entropy.isnan().tolist() == [False, True, True]
                assert out.temperature[0] == want.temperature[0] and out.temperature.isfinite().all()
            else:
                out, want = policy.step(slots, h, last), control.step(slots, h, last)
                assert torch.equal(out.temperature, want.temperature) and not out.failed.any()
        assert torch.equal(policy._state, control._state) and torch.equal(policy._ring, control._ring)
        assert torch.equal(policy._ema, control._ema)


def test_fixed_and_greedy_need_no_entropy() -> None:
    slots = torch.arange(2)
    fixed = StepPolicy(PolicySettings(name="fixed", temperature=0.7), None, 2)
    fixed.join(slots)
    out = fixed.step(slots, None, None)
    assert out.temperature.tolist() == pytest.approx([0.7, 0.7]) and not out.failed.any()
    assert (out.entropy, out.step, out.boundary, out.uncertain, out.tau, out.step_entropy) == (None,) * 6
    out = fixed.step(slots, torch.tensor([1 / 3, math.nan], dtype=torch.float64), None)
    assert out.failed.tolist() == [False, True] and out.entropy[0].item() == round(2**22 / 3) / 2**22
    assert StepPolicy(PolicySettings(name="greedy"), None, 2).step(slots, None, None).temperature.tolist() == [0.0, 0.0]


def test_what_a_baseline_does_not_use_is_none() -> None:
    slots, h, last = torch.arange(1), torch.tensor([0.5], dtype=torch.float64), torch.tensor([-1])
    for name, known in {
        "reset": ("step", "boundary", "uncertain", "step_entropy", "global_mean", "tau"),
        "step-relative": ("step", "boundary", "step_entropy", "tau"),
        "uniform-low": ("step", "boundary", "uncertain", "step_entropy", "global_mean", "tau"),
        "fixed-threshold": ("tau",),
        "sliding-window": ("tau",),
    }.items():
        out = StepPolicy(PolicySettings(name=name, tau_0=0.6), TABLE, 1).step(slots, h, last)
        fields = ("step", "boundary", "uncertain", "step_entropy", "global_mean", "tau")
        assert tuple(f for f in fields if getattr(out, f) is not None) == known


def test_unknown_tokens_and_inference_mode() -> None:
    settings = PolicySettings(tau_0=0.6)
    with torch.inference_mode():
        policy = StepPolicy(settings, TABLE, 1)
        policy.join(torch.tensor([0]))
    slots, h = torch.tensor([0]), torch.tensor([0.5], dtype=torch.float64)
    assert policy.step(slots, h, torch.tensor([-1])).boundary.item()
    policy.step(slots, h, torch.tensor([VOCABULARY.index(b"\n")]))
    assert not policy.step(slots, h, torch.tensor([10**9])).boundary.item()
    with torch.inference_mode():
        assert not policy.step(slots, h, torch.tensor([VOCABULARY.index(b"\n")])).boundary.item()
    assert policy.step(slots, h, torch.tensor([VOCABULARY.index(b"\n")])).boundary.item()


def test_construction_refuses_what_it_cannot_serve() -> None:
    with pytest.raises(UsageError, match="--window"):
        StepPolicy(PolicySettings(tau_0=0.6, window=0), TABLE, 1)
    with pytest.raises(ValueError, match="boundary table"):
        StepPolicy(PolicySettings(tau_0=0.6), None, 1)
    with pytest.raises(ValueError, match="needs entropies"):
        StepPolicy(PolicySettings(tau_0=0.6), TABLE, 1).step(torch.tensor([0]), None, torch.tensor([-1]))
