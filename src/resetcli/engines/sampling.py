"""Filtered sampling by inverse CDF: min-p, top-k, top-p, then one uniform number picks the token.

Tokens are ordered by (probability descending, id ascending), so the result is a function of the row's
logits, its temperature and its uniform alone: no generator state, no dependence on the batch. Filters act
after the temperature, in the order that vLLM uses: min-p against the largest probability, the k most
probable, then the smallest prefix whose renormalised mass reaches top-p.

On a CPU a full sort of 50 to 150 thousand logits costs more than the rest of the step, so the candidates are
first cut to a head that provably holds the nucleus; a row whose head does not reach top-p gets a larger one.
All paths give the same token. On a GPU the whole row is sorted: static shapes, no synchronisation.
"""

from __future__ import annotations

import torch

HEADS = (256, 4096)


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
    logits = logits.float()
    top = logits.amax(-1, keepdim=True)
    # Maximum first: at T = 0.1 a raw quotient would overflow float16-sized logits.
    scaled = (logits - top) / temperature.to(logits).clamp_min(1e-6)[:, None]
    uniform = torch.where(temperature > 0, uniform, 0.0)
    if min_p > 0:
        scaled = scaled.masked_fill(scaled.exp() < min_p, -torch.inf)
    total = scaled.exp().sum(-1, dtype=torch.float64)
    vocab = logits.shape[-1]
    if logits.is_cuda:
        return _draw(*_ordered(scaled, vocab), total, uniform, top_p, top_k)
    return _draw_from_head(scaled, total, uniform, top_p, top_k, [h for h in HEADS if top_k <= h < vocab])


def _draw_from_head(scaled, total, uniform, top_p: float, top_k: int, heads: list[int]) -> torch.Tensor:
    """Draw from the smallest head that holds each row's kept set, the whole row at last: int64 [B]."""
    if not heads:
        return _draw(*_ordered(scaled, scaled.shape[-1]), total, uniform, top_p, top_k)
    values, ids = _ordered(scaled, heads[0])
    token = _draw(values, ids, total, uniform, top_p, top_k)
    rest = ~_head_suffices(values, total, top_p, top_k)
    if bool(rest.any()):
        rows = rest.nonzero()[:, 0]
        token[rows] = _draw_from_head(scaled[rows], total[rows], uniform[rows], top_p, top_k, heads[1:])
    return token


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The most probable token a row, smallest id on ties: int64 [B] of logits [B, V]."""
    return logits.argmax(-1)


def _ordered(scaled: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``count`` largest entries a row by (value descending, id ascending): values and ids [B, count]."""
    if count == scaled.shape[-1]:
        values, ids = scaled.sort(dim=-1, descending=True, stable=True)
        return values, ids
    ids = scaled.topk(count, -1, sorted=False).indices.sort(-1).values
    values, order = scaled.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)


def _head_suffices(values, total, top_p: float, top_k: int) -> torch.Tensor:
    """Whether the kept set lies strictly above the head's last value (ties beyond the cut would matter): bool [B]."""
    above = values > values[:, -1:]
    # -inf at the end: everything that can be drawn is in the head.
    enough = values[:, -1] == -torch.inf
    if top_k:
        enough |= above.sum(-1) >= top_k
    if top_p < 1:
        mass = (values.exp() * above).sum(-1, dtype=torch.float64)
        enough |= mass >= top_p * total
    return enough


def _draw(values, ids, total, uniform, top_p: float, top_k: int) -> torch.Tensor:
    p = values.exp().double()
    if top_k and top_k < p.shape[-1]:
        p[:, top_k:] = 0.0
    cumulative = p.cumsum(-1)
    mass = cumulative[:, -1]
    if top_p < 1:
        # Keep a token while the mass before it is below top-p of the whole; the first is always kept.
        whole = mass if top_k else total
        keep = (cumulative - p) < top_p * whole[:, None]
        keep[:, 0] = True
        last = keep.sum(-1, keepdim=True) - 1
        mass = cumulative.gather(-1, last)[:, 0]
    at = torch.searchsorted(cumulative, (uniform.to(cumulative) * mass)[:, None], right=True)
    # A target that rounding pushed to the end of the mass belongs to the last token that has any.
    end = (cumulative < mass[:, None]).sum(-1, keepdim=True).clamp(max=p.shape[-1] - 1)
    return ids.gather(-1, torch.minimum(at, end))[:, 0]
