"""Attention over our key/value rows, plugged into any transformers model that uses its attention interface.

The model's own forward runs unchanged, without a transformers cache; its attention layers call
`rows_attention`, which finds the rows of the current step in a context variable (as serving engines do), writes
the new keys and values there and attends. So one engine serves every decoder of that interface, and a
model that does not call it is detected after the first forward instead of silently decoding without a past.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from resetcli.base.errors import ResetError
from resetcli.engines.kv import Row, SlotKV

NAME = "reset_rows"


@dataclass
class Step:
    """What a forward pass attends to.

    Prefill and per-request decode: ``rows[i]`` belongs to batch row i. Static decode
    (``slot_kv`` set): all slots at once, the new token of slot i at ``positions[i]``.
    """

    rows: Sequence[Row] = ()
    slot_kv: SlotKV | None = None
    positions: torch.Tensor | None = None
    layers_seen: set[int] = field(default_factory=set)


_current: ContextVar[Step | None] = ContextVar("reset_attention_step", default=None)


@contextlib.contextmanager
def attending(step: Step) -> Iterator[Step]:
    """Make ``step`` the one that attention layers see."""
    token = _current.set(step)
    try:
        yield step
    finally:
        _current.reset(token)


def _grouped_decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: torch.Tensor | None):
    """One query token a row, q [B, H, 1, D] against k, v [B, KVH, L, D]: the query heads of a group become the
    query sequence of their key head, so no key or value is repeated. Returns [B, 1, H, D]."""
    b, h, _, d = q.shape
    out = F.scaled_dot_product_attention(
        q.reshape(b, k.shape[1], h // k.shape[1], d), k, v, attn_mask=mask, scale=scale
    )
    return out.reshape(b, 1, h, d)


def _row_attention(q, k_new, v_new, row: Row, layer: int, scale: float, window: int | None) -> torch.Tensor:
    """q [1, H, T, D] of one request at positions row.length ..; returns [1, T, H, D]."""
    keys, values = row.views(layer)
    start, t = row.length, q.shape[2]
    end = start + t
    keys[:, start:end] = k_new
    values[:, start:end] = v_new
    first = max(0, end - window) if window is not None and t == 1 else 0
    k, v = keys[None, :, first:end], values[None, :, first:end]
    if t == 1:
        return _grouped_decode(q, k, v, scale, None)
    mask = None
    if start or (window is not None and end > window):
        at = torch.arange(start, end, device=q.device)[:, None]
        over = torch.arange(end, device=q.device)[None, :]
        mask = over <= at
        if window is not None:
            mask &= over > at - window
    grouped = k.shape[1] != q.shape[1]
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )
    return out.transpose(1, 2)


def _static_attention(q, k_new, v_new, step: Step, layer: int, scale: float, window: int | None) -> torch.Tensor:
    """All slots, one token each: q [S, H, 1, D]; returns [S, 1, H, D]. Static shapes, no host synchronisation."""
    kv, positions = step.slot_kv, step.positions
    assert kv is not None and positions is not None
    slots = torch.arange(q.shape[0], device=q.device)
    keys, values = kv.keys[layer], kv.values[layer]
    keys[slots, :, positions] = k_new[:, :, 0]
    values[slots, :, positions] = v_new[:, :, 0]
    over = torch.arange(kv.capacity, device=q.device)[None, :]
    mask = over <= positions[:, None]
    if window is not None:
        mask = mask & (over > positions[:, None] - window)
    return _grouped_decode(q, keys, values, scale, mask[:, None, None, :])


def rows_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """Attention function of transformers' interface; see the module's note.

    Args:
        query, key, value: [B, heads, T, head_dim] with the rotation already applied.

    Returns:
        (output [B, T, heads, head_dim], None).

    Raises:
        ResetError: called outside an engine's forward, or the layer needs logit soft-capping or sinks.
    """
    step = _current.get()
    if step is None:
        raise ResetError("this model was prepared for resetcli's engine; load it afresh to call it directly")
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise ResetError(
            f"{type(module).__name__} needs attention soft-capping or sinks, which the transformers engine lacks"
        )
    layer = module.layer_idx
    step.layers_seen.add(layer)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    window = kwargs.get("sliding_window")
    if step.slot_kv is not None:
        return _static_attention(query, key, value, step, layer, scale, window), None
    parts = [
        _row_attention(query[i : i + 1], key[i], value[i], row, layer, scale, window) for i, row in enumerate(step.rows)
    ]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)), None


AttentionInterface.register(NAME, rows_attention)
