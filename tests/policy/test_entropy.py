"""Entropy against float64 softmax in NumPy, and the independence of a row from its batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from resetcli.policy.entropy import TICKS, entropy_stats, from_ticks, to_ticks


def reference(row: np.ndarray) -> tuple[float, float]:
    """(H, log Z) by -sum p log p in float64, masked entries left out."""
    x = row[np.isfinite(row)].astype(np.float64)
    log_z = x.max() + math.log(math.fsum(np.exp(x - x.max())))
    log_p = x - log_z
    return -math.fsum(np.exp(log_p) * log_p), log_z


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("vocab", [1, 5, 128, 300, 49_152, 151_936])
def test_within_1e_6_of_float64(vocab: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(vocab)
    for scale in (0.01, 1.0, 4.0, 12.0):
        logits = (torch.randn(3, vocab, generator=generator) * scale).to(dtype)
        logits[1, 1::3] = -math.inf
        logits[2, vocab // 2] += 25
        entropy, log_z = entropy_stats(logits)
        assert entropy.dtype == log_z.dtype == torch.float64
        for row in range(3):
            h, z = reference(logits[row].float().numpy())
            assert abs(entropy[row].item() - h) < 1e-6 and abs(log_z[row].item() - z) < 1e-6


def test_special_rows() -> None:
    logits = torch.zeros(7, 1000)
    logits[1] = -math.inf
    logits[2, 3] = math.nan
    logits[3, 3] = math.inf
    logits[4, 1:] = -math.inf
    logits[5, 10:] = -math.inf
    logits[6] = 60_000.0
    entropy, log_z = entropy_stats(logits)
    assert entropy.isnan().tolist() == log_z.isnan().tolist() == [False, True, True, True, False, False, False]
    assert entropy[0].item() == pytest.approx(math.log(1000), abs=1e-12)
    assert entropy[4].item() == 0.0 and math.copysign(1, entropy[4].item()) == 1.0 and log_z[4].item() == 0.0
    assert entropy[5].item() == pytest.approx(math.log(10), abs=1e-12)
    assert log_z[6].item() == pytest.approx(60_000 + math.log(1000), abs=1e-9)


def test_vocabulary_padding_does_not_count_and_input_is_kept() -> None:
    logits = torch.randn(2, 500)
    before = logits.clone()
    assert torch.equal(torch.stack(entropy_stats(logits, 333)), torch.stack(entropy_stats(logits[:, :333].clone())))
    assert torch.equal(logits, before)
    assert torch.equal(entropy_stats(logits, 10**6)[0], entropy_stats(logits)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [257, 49_152, 49_280, 151_937])
def test_a_row_does_not_depend_on_its_batch(vocab: int, dtype: torch.dtype) -> None:
    logits = (torch.randn(9, vocab, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    whole = torch.stack(entropy_stats(logits))
    for batch in (1, 2, 3, 5, 8):
        assert torch.equal(torch.stack(entropy_stats(logits[:batch].clone())), whole[:, :batch])
        assert torch.equal(torch.stack(entropy_stats(logits[-batch:].clone())), whole[:, -batch:])


def test_ticks() -> None:
    entropy = torch.tensor([0.0, 0.5 / TICKS, 1.5 / TICKS, 1 / 3, 11.9], dtype=torch.float64)
    ticks = to_ticks(entropy)
    assert ticks.tolist() == [0, 0, 2, round(TICKS / 3), round(11.9 * TICKS)]
    assert torch.equal(to_ticks(from_ticks(ticks)), ticks)
    assert (from_ticks(ticks) - entropy).abs().max() <= 0.5 / TICKS


@pytest.mark.parametrize("bad", [torch.zeros(5), torch.zeros(2, 0), torch.zeros(1, 2, 3)])
def test_wrong_shapes(bad: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="logits must be"):
        entropy_stats(bad)
