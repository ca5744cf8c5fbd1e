"""The one entropy function, used by calibration and decoding alike (design 1.3).

H = log Z - S/Z with Z = sum e^d, S = sum d e^d, d = logit - max: unlike softmax-then-log it loses nothing to
the smallest probabilities. Exponentials and products are float32; blocks of 128 are summed in float32 and the
block sums in float64, which keeps H within 1e-6 of float64 at V = 151,936 at nearly the speed of float32. (The
one case outside: tens of thousands of float32 logits that are exactly equal to each other round alike instead of
averaging out; then 2e-6.)

On a CPU the columns are walked in pieces that fit the second-level cache, about three times faster than whole
[B, V] temporaries at B = 8. Block borders do not depend on the pieces, and every sum has one fixed order, so a
row's result depends neither on B nor on what else is in the batch. On other devices there is one piece.
"""

from __future__ import annotations

import torch
from torch import Tensor

TICKS = 2**22
"""Entropies enter a policy's state as whole multiples of 1/TICKS nat."""

_BLOCK = 128
_PIECE = 65_536  # float32 elements a CPU piece may have: two of them lie in 512 KiB
_FLOOR = -1.0e4  # stands for -inf in d: e^d is 0 and so is d e^d, where -inf * 0 would be NaN


def entropy_stats(logits: Tensor, valid_vocab: int | None = None) -> tuple[Tensor, Tensor]:
    """Entropy in nats and log-partition of each row, temperature 1.

    ``logits`` [B, V] in any float dtype, -inf where masked; only the first ``valid_vocab`` columns count (the
    rest is vocabulary padding). Returns (entropy, log_z), both float64 [B]; the log-probability of token k is
    ``logits[b, k] - log_z[b]``. A row with a NaN or +inf, or with every entry masked, gives NaN in both.
    No host synchronisation, the input is not changed. On a CPU rows are bit-equal for every B (measured, also
    B = 1, with one or more threads).

    Raises:
        ValueError: not two-dimensional, or no valid column.
    """
    if logits.dim() != 2 or logits.shape[1] == 0 or (valid_vocab is not None and valid_vocab < 1):
        raise ValueError(f"logits must be [B, V] with V >= 1, got {list(logits.shape)}, valid_vocab={valid_vocab}")
    if valid_vocab is not None and valid_vocab < logits.shape[1]:
        logits = logits[:, :valid_vocab]
    rows, columns = logits.shape
    peak = logits.amax(dim=1, keepdim=True).float()
    piece = columns
    if logits.device.type == "cpu":
        piece = max(_PIECE // max(rows, 1) // _BLOCK, 1) * _BLOCK
    z_blocks: list[Tensor] = []
    s_blocks: list[Tensor] = []
    for start in range(0, columns, piece):
        # float32 even for 16-bit logits: a tensor with dimensions takes part in type promotion.
        d = torch.sub(logits[:, start : start + piece], peak).clamp_(min=_FLOOR)
        e = d.exp()
        _block_sums(e, z_blocks)
        _block_sums(e.mul_(d), s_blocks)
    z = (torch.cat(z_blocks, dim=1) if len(z_blocks) > 1 else z_blocks[0]).double().sum(dim=1)
    s = (torch.cat(s_blocks, dim=1) if len(s_blocks) > 1 else s_blocks[0]).double().sum(dim=1)
    log = z.log()
    # NaN passes through clamp; a certain token gives -0.0 or a rounding error below 0.
    return (log - s / z).clamp_(min=0.0), log + peak.squeeze(1)


def _block_sums(values: Tensor, out: list[Tensor]) -> None:
    """Append the float32 sums of blocks of 128 columns, a last shorter block among them: [B, blocks] each."""
    columns = values.shape[1]
    whole = columns // _BLOCK * _BLOCK
    if whole:
        out.append(values[:, :whole].unflatten(1, (-1, _BLOCK)).sum(dim=2))
    if whole < columns:
        out.append(values[:, whole:].sum(dim=1, keepdim=True))


def to_ticks(entropy: Tensor) -> Tensor:
    """int64 multiples of 2^-22 nat nearest to ``entropy`` (float64, finite), ties to even."""
    return (entropy * TICKS).round_().to(torch.int64)


def from_ticks(ticks: Tensor) -> Tensor:
    """float64 nats of int64 ticks: exact below 2^53 ticks."""
    return ticks.to(torch.float64) * (1.0 / TICKS)
