"""Filtered sampling by inverse CDF: min-p, top-k, top-p, then one uniform number picks the token.

Tokens are ordered by (probability descending, id ascending), so the result is a function of the row's
logits, its temperature and its uniform alone: no generator state, no dependence on the batch. Filters act
after the temperature, in the order that vLLM uses: min-p against the largest probability, the k most
probable, then the smallest prefix whose renormalised mass reaches top-p.

On a CPU a full sort of 50 to 150 thousand logits, or torch's top-k of them, costs as much as the rest of the step. So
each row is first cut at a value below which, whatever its shape, the tokens together have less mass than top-p leaves
out: with V tokens and the total Z, all those under (1 - top_p) Z / V. What is above is provably a head of the order
that holds the kept set; halfway up in the logarithm, a smaller head mostly holds it too, which is checked. Only a
head is sorted: tens or hundreds of tokens in practice, thousands of a flat row. Without top-p the uniform number
takes its place, since the token it falls on lies in the head that has its mass. Rows go one by one through buffers
that fit the cache, which also makes a row's bits independent of how many there are. On a GPU the whole row is sorted:
static shapes, no synchronisation.
"""

from __future__ import annotations

import math

import numpy as np
import torch


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    uniform: torch.Tensor,
    *,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
) -> torch.Tensor:
    """One token a row.

    Args:
        logits: [B, V], any float dtype; -inf entries are never drawn.
        temperature: float [B]; 0 is argmax (smallest id on ties).
        uniform: float64 [B] in [0, 1).
        top_p: 0 < top_p <= 1; 1 is off. top_k: 0 is off. min_p: 0 is off.

    Returns:
        int64 [B]. A row that is all NaN or all -inf gives an arbitrary valid id; the caller checks for those.
    """
    if logits.device.type == "cpu":
        return _sample_rows(logits, temperature, uniform, top_p, top_k, min_p)
    return sample_by_sorting(logits, temperature, uniform, top_p=top_p, top_k=top_k, min_p=min_p)


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The most probable token a row, smallest id on ties: int64 [B] of logits [B, V]."""
    return logits.argmax(-1)


def _sample_rows(logits, temperature, uniform, top_p: float, top_k: int, min_p: float) -> torch.Tensor:
    vocab = logits.shape[1]
    scaled = torch.empty(vocab)
    weight = torch.empty(vocab)
    scaled_view, weight_view = scaled.numpy(), weight.numpy()
    tokens = []
    for row, heat, u in zip(logits.unbind(), temperature.float().tolist(), uniform.tolist(), strict=True):
        row = row.detach().float()
        # Maximum first: at T = 0.1 a raw quotient would overflow float16-sized logits.
        torch.sub(row, row.amax(), out=scaled).div_(max(heat, 1e-6))
        torch.exp(scaled, out=weight)
        if min_p > 0:
            weight.masked_fill_(weight < min_p, 0.0)
        total = weight.sum(dtype=torch.float64).item()
        tokens.append(_pick(scaled_view, weight_view, total, u if heat > 0 else 0.0, top_p, top_k, min_p))
    return torch.tensor(tokens)


def _pick(
    scaled: np.ndarray, weight: np.ndarray, total: float, u: float, top_p: float, top_k: int, min_p: float
) -> int:
    """The token of one row: ``scaled`` = (logit - max) / T, ``weight`` its exponential, ``total`` their sum."""
    vocab = len(scaled)
    if 0 < top_k < vocab:
        ids = np.flatnonzero(scaled >= np.partition(scaled, vocab - top_k)[vocab - top_k])
    else:
        top_k = 0
        ids = _head(scaled, weight, total, top_p if top_p < 1 else u)
    if min_p > 0:
        ids = ids[weight[ids] >= min_p]
    if not len(ids):
        return 0
    ids = _ordered(ids, scaled[ids])
    if top_k:
        ids = ids[:top_k]
    p = weight[ids].astype(np.float64)
    cumulative = p.cumsum()
    mass = cumulative[-1] if top_k else total
    if top_p < 1:
        # Keep a token while the mass before it is below top-p of the whole; the first is always kept.
        mass = cumulative[max(int(np.count_nonzero(cumulative - p < top_p * mass)), 1) - 1]
    at = int(np.searchsorted(cumulative, u * mass, side="right"))
    # A target that rounding pushed to the end of the mass belongs to the last token that has any.
    return int(ids[min(at, int(np.searchsorted(cumulative, mass)), len(ids) - 1)])


def _head(scaled: np.ndarray, weight: np.ndarray, total: float, share: float) -> np.ndarray:
    """Ids, ascending, of a head of the order with at least ``share`` of the mass; empty if ``total`` is NaN."""
    # The bound of the module's note, a thousandth lower for what float32 rounds away.
    bound = math.log((1 - share) * total / len(scaled)) - 1e-3
    near = np.flatnonzero(scaled >= bound / 2)
    if weight[near].sum(dtype=np.float64) > share * total * (1 + 1e-9):
        return near
    return np.flatnonzero(scaled >= bound)


def _ordered(ids: np.ndarray, scaled: np.ndarray) -> np.ndarray:
    """``ids`` by (value descending, id ascending); values at most 0."""
    # One integer a token, the bits of -value above the id: these sort many times faster than values with an index.
    above = np.subtract(np.float32(0), scaled).view(np.int32).astype(np.int64) << 32
    return np.sort(above | ids) & 0xFFFFFFFF


def sample_by_sorting(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    uniform: torch.Tensor,
    *,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
) -> torch.Tensor:
    """As ``sample``, by sorting whole rows: tensor operations only, for devices where that is the fast way."""
    logits = logits.float()
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature.to(logits).clamp_min(1e-6)[:, None]
    uniform = torch.where(temperature > 0, uniform, 0.0)
    if min_p > 0:
        scaled = scaled.masked_fill(scaled.exp() < min_p, -torch.inf)
    total = scaled.exp().sum(-1, dtype=torch.float64)
    values, ids = scaled.sort(dim=-1, descending=True, stable=True)
    p = values.exp().double()
    if top_k:
        p[:, top_k:] = 0.0
    cumulative = p.cumsum(-1)
    mass = cumulative[:, -1]
    if top_p < 1:
        whole = mass if top_k else total
        keep = (cumulative - p) < top_p * whole[:, None]
        keep[:, 0] = True
        last = keep.sum(-1, keepdim=True) - 1
        mass = cumulative.gather(-1, last)[:, 0]
    at = torch.searchsorted(cumulative, (uniform.to(cumulative) * mass)[:, None], right=True)
    end = (cumulative < mass[:, None]).sum(-1, keepdim=True).clamp(max=p.shape[-1] - 1)
    return ids.gather(-1, torch.minimum(at, end))[:, 0]
