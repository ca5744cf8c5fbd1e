"""Sampling against a plain reference and against torch.distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resetcli.engines.sampling import greedy, sample, sample_by_sorting


def kept_probabilities(
    logits: list[float], temperature: float, top_p: float, top_k: int, min_p: float
) -> list[tuple[int, float]]:
    """The filtered distribution in drawing order, by the definition: (id, probability), plain Python floats."""
    top = max(logits)
    weight = [math.exp((x - top) / temperature) if x > -math.inf else 0.0 for x in logits]
    order = sorted((i for i, w in enumerate(weight) if w > 0 and w >= min_p), key=lambda i: (-weight[i], i))
    if top_k:
        order = order[:top_k]
    total, mass, kept = sum(weight[i] for i in order), 0.0, []
    for i in order:
        if mass >= top_p * total and kept:
            break
        kept.append(i)
        mass += weight[i]
    return [(i, weight[i] / mass) for i in kept]


def reference(logits, temperature, u, top_p, top_k, min_p) -> int:
    kept = kept_probabilities(logits, temperature, top_p, top_k, min_p)
    mass = 0.0
    for i, p in kept:
        mass += p
        if u < mass:
            return i
    return kept[-1][0]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(-40, 40), min_size=1, max_size=60),
    st.sampled_from([0.1, 0.6, 1.0, 2.0]),
    st.floats(0, 0.999),
    st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    st.sampled_from([0, 1, 5, 100]),
    st.sampled_from([0.0, 0.05, 0.9]),
)
def test_small_vocabulary_matches_definition(values, temperature, u, top_p, top_k, min_p):
    logits = [v / 8 for v in values]
    # Near a cut the float32 weights may fall on the other side; such draws are not compared.
    weight = kept_probabilities(logits, temperature, top_p, top_k, min_p)
    edges = np.cumsum([p for _, p in weight])
    got = sample(
        torch.tensor([logits]), torch.tensor([temperature]), torch.tensor([u], dtype=torch.float64),
        top_p=top_p, top_k=top_k, min_p=min_p,
    ).item()  # fmt: skip
    full = kept_probabilities(logits, temperature, 1.0, top_k, min_p)
    near = np.abs(np.cumsum([p for _, p in full]) - top_p).min() < 1e-5
    if np.abs(edges - u).min() > 1e-5 and not near:
        assert got == reference(logits, temperature, u, top_p, top_k, min_p)
    assert got in {i for i, _ in full}


@pytest.mark.parametrize("spread", [0.3, 2.0, 6.0])
@pytest.mark.parametrize(
    "filters", [{"top_p": 0.95}, {"top_p": 1.0}, {"top_k": 20}, {"top_k": 900, "top_p": 0.9}, {"min_p": 0.02}]
)
def test_large_vocabulary_matches_definition(spread, filters):
    generator = torch.Generator().manual_seed(3)
    vocab = 6000
    logits = (torch.randn(6, vocab, generator=generator) * spread).half().float()  # half: many exact ties
    temperature = torch.tensor([0.1, 0.3, 0.6, 1.0, 1.3, 2.0])
    for _ in range(5):
        u = torch.rand(6, dtype=torch.float64, generator=generator)
        got = sample(logits, temperature, u, **filters)
        for row in range(6):
            kept = kept_probabilities(
                logits[row].tolist(),
                float(temperature[row]),
                filters.get("top_p", 1.0),
                filters.get("top_k", 0),
                filters.get("min_p", 0.0),
            )
            mass = np.cumsum([p for _, p in kept])
            at = int(np.searchsorted(mass, float(u[row]), side="right"))
            candidates = (
                {kept[min(max(i, 0), len(kept) - 1)][0] for i in (at - 1, at, at + 1)}
                if np.abs(mass - float(u[row])).min() < 1e-5
                else {kept[min(at, len(kept) - 1)][0]}
            )
            assert int(got[row]) in candidates


@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0, 6.0])
@pytest.mark.parametrize(
    "filters",
    [{"top_p": 0.95}, {"top_p": 1.0}, {"top_p": 1e-6}, {"top_k": 20}, {"top_k": 5000}, {"top_k": 900, "top_p": 0.9},
     {"min_p": 0.02}, {"min_p": 0.3, "top_k": 7, "top_p": 0.8}, {"min_p": 1.0}],
)  # fmt: skip
@pytest.mark.parametrize("masked", [False, True])
def test_the_cut_row_and_the_sorted_row_give_the_same_token(spread, filters, masked):
    """The CPU's way and the GPU's, run on the same rows with many exact ties; uniforms at both ends too."""
    generator = torch.Generator().manual_seed(5)
    logits = (torch.randn(40, 3001, generator=generator) * spread).half().float()
    if masked:
        logits[:, 1::2] = -torch.inf
        logits[::4, 3:] = -torch.inf
    temperature = torch.tensor([0.0, 0.1, 0.6, 1.0, 2.0]).repeat(8)
    u = torch.rand(40, dtype=torch.float64, generator=generator)
    u[::7], u[1::7] = 0.0, 1 - 1e-9
    got = sample(logits, temperature, u, **filters)
    assert logits.gather(1, got[:, None]).isfinite().all()
    expected = sample_by_sorting(logits, temperature, u, **filters)
    differ = (got != expected).nonzero()[:, 0].tolist()
    # Sums are taken in another order: a uniform may fall on the other side of a border, hence a neighbour. Rare.
    assert len(differ) <= 1
    for row in differ:
        order = logits[row].sort(descending=True, stable=True).indices.tolist()
        assert abs(order.index(int(got[row])) - order.index(int(expected[row]))) == 1
    last = sample(logits, temperature, torch.full_like(u, 1 - 2.0**-53), **filters)
    assert logits.gather(1, last[:, None]).isfinite().all()


def test_rows_without_a_distribution_give_some_id():
    logits = torch.zeros(3, 50)
    logits[0], logits[1, 7], logits[2, 7] = -torch.inf, torch.nan, torch.inf
    u = torch.full((3,), 0.5, dtype=torch.float64)
    for filters in ({"top_p": 0.95}, {"top_k": 5}, {"min_p": 0.1}, {}):
        got = sample(logits, torch.ones(3), u, **filters)
        assert got.dtype == torch.int64 and ((got >= 0) & (got < 50)).all()


def test_16_bit_logits_and_columns_of_a_larger_tensor():
    logits = (torch.randn(4, 900, generator=torch.Generator().manual_seed(2)) * 3).to(torch.bfloat16)
    u = torch.tensor([0.1, 0.5, 0.9, 0.99], dtype=torch.float64)
    cut = logits[:, :700]
    assert torch.equal(
        sample(cut, torch.ones(4), u, top_p=0.9), sample(cut.float().clone(), torch.ones(4), u, top_p=0.9)
    )


def test_frequencies_follow_the_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -torch.inf, 1.0]])
    n = 50_000
    u = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got = sample(logits.expand(n, -1), torch.full((n,), 0.7), u)
    expected = torch.distributions.Categorical(logits=logits[0] / 0.7).probs
    assert torch.allclose(torch.bincount(got, minlength=6) / n, expected, atol=8e-3)
    assert not (got == 4).any()


def test_zero_temperature_is_argmax_with_smallest_id():
    logits = torch.tensor([[1.0, 3.0, 3.0], [5.0, 1.0, 0.0]])
    u = torch.tensor([0.9, 0.9], dtype=torch.float64)
    assert sample(logits, torch.zeros(2), u, top_p=0.95).tolist() == [1, 0] == greedy(logits).tolist()


def test_a_row_does_not_depend_on_its_company():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(8, 20_000, generator=generator) * 3
    u = torch.rand(8, dtype=torch.float64, generator=generator)
    temperature = torch.rand(8, generator=generator) + 0.1
    together = sample(logits, temperature, u, top_p=0.95)
    for rows in range(1, 8):
        assert sample(logits[:rows], temperature[:rows], u[:rows], top_p=0.95).tolist() == together[:rows].tolist()
