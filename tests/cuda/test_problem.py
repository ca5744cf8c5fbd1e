"""The bench's own float64 answers, judged by ml_dtypes and by brute force: an oracle must be right itself."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from resetcli.cuda.problem import check, make_problem, quantize_activations, row_error, unpack
from resetcli.cuda.shapes import Shape


def numpy_weight(packed: torch.Tensor, scales: torch.Tensor) -> np.ndarray:
    nibbles = np.stack([packed.numpy() & 15, packed.numpy() >> 4], axis=-1).reshape(packed.shape[0], -1)
    codes = nibbles.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    steps = scales.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return codes * np.repeat(steps, 16, axis=1)


def numpy_quantize(x: np.ndarray, input_scale: float) -> np.ndarray:
    out = np.empty_like(x, dtype=np.float64)
    for row in range(x.shape[0]):
        for start in range(0, x.shape[1], 16):
            block = x[row, start : start + 16].astype(np.float64)
            wanted = min(max(np.abs(block).max() / (6 * input_scale), 2.0**-9), 448.0)
            step = float(np.float32(wanted).astype(ml_dtypes.float8_e4m3fn)) * input_scale
            codes = np.clip(block / step, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64)
            out[row, start : start + 16] = codes * step
    return out


def test_weights_equal_an_independent_unpacking() -> None:
    problem = make_problem(Shape(48, 96), 2, seed=3)
    assert np.array_equal(unpack(problem.packed, problem.scales).numpy(), numpy_weight(problem.packed, problem.scales))


def test_scales_are_wide() -> None:
    scales = make_problem(Shape(256, 256), 1, seed=0).scales.float()
    assert scales.max() / scales.min() > 2**14


def test_activation_rule_equals_ml_dtypes() -> None:
    problem = make_problem(Shape(16, 512), 8, seed=5)
    values, _ = quantize_activations(problem.x, problem.input_scale)
    assert np.array_equal(values.numpy(), numpy_quantize(problem.x.numpy(), problem.input_scale))


def test_ties_go_to_even_and_are_lawful_deviations() -> None:
    """Rule: with a power-of-two scale, exact ties round to even and only they get slack."""
    x = torch.zeros(1, 16)
    x[0, :8] = torch.tensor([6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    x[0, 8:11] = torch.tensor([-5.0, 0.3, 2.6])
    values, slack = quantize_activations(x, 1.0)
    assert values[0, :11].tolist() == [6.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, -4.0, 0.5, 3.0]
    assert (slack[0] > 0).tolist() == [False] + [True] * 8 + [False] * 7


def test_answers_equal_brute_force() -> None:
    problem = make_problem(Shape(40, 64), 3, seed=9)
    w, x = numpy_weight(problem.packed, problem.scales), problem.x.numpy().astype(np.float64)
    xq = numpy_quantize(problem.x.numpy(), problem.input_scale)
    g = problem.global_scale
    np.testing.assert_allclose(problem.plain.numpy(), x @ w.T, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(problem.plain_size.numpy(), abs(x) @ abs(w).T, rtol=1e-12)
    np.testing.assert_allclose(problem.quantized.numpy(), xq @ w.T * g, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(problem.quantized_size.numpy(), abs(xq) @ abs(w).T * g, rtol=1e-12)


def test_seeds_decide_everything() -> None:
    one, two, other = (make_problem(Shape(32, 32), 2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.packed, two.packed) and torch.equal(one.x, two.x)
    assert not torch.equal(one.packed, other.packed)


@pytest.mark.parametrize("bad", ["zero", "nan", "inf", "one element"])
def test_check_catches(bad: str) -> None:
    problem = make_problem(Shape(64, 256), 4, seed=2)
    y = problem.plain.float()
    assert check(y, problem.plain, problem.plain_size, None, 2.0**-14).correct
    if bad == "zero":
        y = torch.zeros_like(y)
    else:
        y[1, 7] = {"nan": float("nan"), "inf": float("inf"), "one element": y[1, 7] * 1.01 + 1e-3}[bad]
    assert not check(y, problem.plain, problem.plain_size, None, 2.0**-14).correct


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_lawful_deviation_is_rounded_as_it_stands(dtype: torch.dtype) -> None:
    """What lies a lawful deviation beside the answer is rounded by half a step of its own, not of the answer's."""
    draw = torch.Generator().manual_seed(3)
    truth = torch.randn(64, 512, dtype=torch.float64, generator=draw)
    size, slack = truth.abs() * 8, torch.rand(64, 512, dtype=torch.float64, generator=draw)
    for off in (slack, slack + 2.0**-20 * size):
        assert check((truth + off).to(dtype), truth, size, slack, 2.0**-20, rounding=0.5).correct
    assert not check((truth + 1.01 * slack + 0.1).to(dtype), truth, size, slack, 2.0**-20, rounding=0.5).correct


def test_the_error_of_a_row_is_what_lies_beyond_lawful_deviations() -> None:
    truth = torch.ones(2, 4, dtype=torch.float64)
    slack = torch.tensor([[0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    y = truth + slack
    assert row_error(y, truth, slack) == 0.0 and row_error(y, truth) == 0.25
    y[1, 3] += 0.2
    assert row_error(y, truth, slack) == pytest.approx(0.1)
