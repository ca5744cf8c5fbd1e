"""The judge of the kernels: random products on the GPU with their float64 answers, and the bounds they must keep.

W's block scales are drawn over all positive E4M3 numbers, subnormals included (2^-9 to 448), for with narrow scales
float32 sums are nearly exact and a wrong kernel passes. X's codes for W4A4 come from ``nvfp4.codec``, which is judged
by ml_dtypes elsewhere; W is unpacked here. The weight's global factor is chosen so that outputs stay inside fp16.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from resetcli.cuda.activations import Activations, padded_k
from resetcli.nvfp4 import codec

BLOCK = 16
ROW_BOUND = {torch.bfloat16: 2e-3, torch.float16: 3e-4}
"""Largest ||Y - R|| / ||R|| of a row (where rounding alone allows it)."""
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Elementwise: |Y - R| <= ROUNDING |R| + SUM_BOUND sum |x w|."""
SUM_BOUND = 2.0**-20
LARGEST = 256.0
"""Magnitude of the largest output."""
LIBRARY_BOUND = 2.0**-18
"""In SUM_BOUND's place for products left to cuBLAS, which adds a long K in the tensor cores, by truncation."""
_CHUNK = 1 << 24  # elements of W unpacked at a time


@dataclass
class Case:
    """Y[m,n] = X[m,k] W[n,k]^T: operands on the GPU, and answers by "w4a4" and "w4a16"."""

    weight: torch.Tensor
    scale: torch.Tensor
    x: torch.Tensor
    input_scale: float
    weight_scale_2: dict[str, float] = field(default_factory=dict)
    answer: dict[str, torch.Tensor] = field(default_factory=dict)
    size: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return self.weight.shape[0]

    @property
    def k(self) -> int:
        return self.weight.shape[1] * 2

    def alpha(self, activations: str) -> float:
        """The global factor that a family is given."""
        factor = self.weight_scale_2[activations]
        return factor if activations == "w4a16" else factor * self.input_scale


def make_case(n: int, k: int, m: int, dtype: torch.dtype, seed: int, device: str = "cuda") -> Case:
    """A fresh product, fixed by ``seed``."""
    draw = torch.Generator(device).manual_seed(seed)
    weight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=draw, device=device)
    codes = torch.randint(1, 127, (n, k // BLOCK), dtype=torch.uint8, generator=draw, device=device)
    spread = torch.exp2(torch.rand(m, k // BLOCK, 1, generator=draw, device=device) * 10 - 6)
    x = (torch.randn(m, k // BLOCK, BLOCK, generator=draw, device=device) * spread).view(m, k).to(dtype)
    case = Case(weight, codes.view(torch.float8_e4m3fn), x, float((x.float().abs().amax() / (6 * 448)).float()))
    xs = {"w4a4": values(x, case.input_scale), "w4a16": x.double()}
    stacked = torch.cat(list(xs.values()))
    sums, sizes = (torch.empty(2 * m, n, dtype=torch.float64, device=device) for _ in range(2))
    rows = max(1, _CHUNK // k)
    for start in range(0, n, rows):
        part = slice(start, start + rows)
        w = unpack(case.weight[part], case.scale[part])
        sums[:, part] = stacked @ w.T
        sizes[:, part] = stacked.abs() @ w.abs_().T
    for index, name in enumerate(xs):
        raw, size = sums[index * m : (index + 1) * m], sizes[index * m : (index + 1) * m]
        factor = LARGEST / float(raw.abs().max())
        case.weight_scale_2[name] = float(np.float32(factor / (1.0 if name == "w4a16" else case.input_scale)))
        # as a kernel is given it: one float32
        alpha = float(np.float32(case.alpha(name)))
        case.answer[name], case.size[name] = raw * alpha, size * alpha
    return case


def unpack(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """codes * block scales, float64 [N, K]."""
    table = torch.tensor(codec.E2M1_VALUES, dtype=torch.float64, device=weight.device)
    codes = torch.stack((weight & 15, weight >> 4), dim=-1).flatten(1).int()
    return (table[codes].view(weight.shape[0], -1, BLOCK) * scale.double().unsqueeze(-1)).flatten(1)


def values(x: torch.Tensor, input_scale: float) -> torch.Tensor:
    """Codes * block scales of x by the checkpoint's rule, without the global factor, float64."""
    packed, scales = codec.quantize(x, torch.tensor(input_scale, dtype=torch.float32, device=x.device))
    return unpack(packed, scales)


def faults(y: torch.Tensor, answer: torch.Tensor, size: torch.Tensor, sums: float = SUM_BOUND) -> str:
    """What is wrong with y [M, N] in bf16 or fp16, or "" if nothing is."""
    got = y.double()
    if not bool(torch.isfinite(got).all()):
        bad = int((~torch.isfinite(got)).sum())
        row, column = (int(i) for i in (~torch.isfinite(got)).nonzero()[0])
        return f"{bad} of {got.numel()} outputs are not finite, the first at [{row}, {column}]"
    error = (got - answer).abs()
    smallest = 2.0**-25 if y.dtype == torch.float16 else 0.0  # half the step of fp16's subnormal numbers
    over = error > ROUNDING[y.dtype] * answer.abs() + sums * size + smallest
    if bool(over.any()):
        row, column = (int(i) for i in over.nonzero()[0])
        return (
            f"{int(over.sum())} of {got.numel()} outputs are out of bounds, the first at [{row}, {column}]: "
            f"{float(got[row, column])} for {float(answer[row, column])} (sum |x w| {float(size[row, column]):.3g})"
        )
    # The best answer in y's type has an error of its own, 1.6e-3 of a row in bf16 on average: with few columns it can
    # pass the bound, and of a row of a few elements the test above says more.
    if y.shape[1] < 8:
        return ""
    share, best = (_row_error(each, answer) for each in (got, answer.to(y.dtype).double()))
    over = share > torch.clamp(1.05 * best, min=ROW_BOUND[y.dtype])
    if bool(over.any()):
        row = int(over.nonzero()[0])
        return f"row {row} has a relative error of {float(share[row]):.2e}, rounding alone {float(best[row]):.2e}"
    return ""


def _row_error(y: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    return (y - answer).norm(dim=1) / answer.norm(dim=1)


def poisoned(
    m: int, n: int, dtype: torch.dtype, device: str | torch.device = "cuda"
) -> tuple[torch.Tensor, torch.Tensor]:
    """An output [m, n] of NaN, and the guard behind it, of NaN as well, which must stay so."""
    whole = torch.full((m * n + 64,), torch.nan, dtype=dtype, device=device)
    return whole[: m * n].view(m, n), whole[m * n :]


def activation_values(acts: Activations, natural_pairs: bool) -> torch.Tensor:
    """Codes * block scales (or x itself) of any form, float64 [M, K]: the layouts of kernels/nvfp4.cuh undone.

    Args:
        natural_pairs: the architecture decodes E2M1 natively, so fp16 pairs hold neighbours.
    """
    m, k, form = acts.m, acts.k, acts.form
    vec, blocks = (2 if k % 32 == 0 else 1), k // BLOCK
    first, second = acts.tensors[0], acts.tensors[-1]
    pairs = list(range(8)) if natural_pairs else [0, 4, 1, 5, 2, 6, 3, 7]  # element in each slot
    if form == "nvfp4":
        return unpack(first, second)
    if form in ("wgmma4", "wgmma8"):
        codes, scales = _from_wgmma(first, m, k, form)
    elif form == "int8":
        codes, scales = _from_lanes(first, m, blocks, vec, 1) / 2, _lane_scales(second[..., 0], m, blocks)
    elif form == "f16":
        codes, scales = _unpair(_from_lanes(first, m, blocks, vec, 2), pairs), _lane_scales(second, m, blocks)
    elif form in ("q16", "x16"):
        return first.double()
    elif form in ("panels", "panels16"):
        assert not bool(second.any()), "the flags are not zero"
        return _from_panels(first, m, k)
    else:
        if first.dtype == torch.bfloat16:
            pairs = [0, 4, 1, 5, 2, 6, 3, 7]
        chunks, tiles = padded_k(k) // (64 * vec), -(-m // 8)
        pieces = first[: 8 * tiles * padded_k(k)].double().view(chunks, tiles, 2 * vec, 8, 4, 8)
        return _unpair(pieces.permute(1, 3, 0, 4, 2, 5).reshape(8 * tiles, -1), pairs)[:m, :k]
    return (codes.view(m, blocks, BLOCK) * scales.unsqueeze(-1)).view(m, k)


def _from_lanes(flat: torch.Tensor, m: int, blocks: int, vec: int, pieces: int) -> torch.Tensor:
    """Undo ``lane_piece``: [M, K] with pieces in natural order, float64."""
    chunks = -(-blocks // (32 * vec))
    laid = flat.double().view(chunks, m, vec * pieces, 32, -1)
    return laid.permute(1, 0, 3, 2, 4).reshape(m, -1)[:, : blocks * BLOCK]


def _from_panels(flat: torch.Tensor, m: int, k: int) -> torch.Tensor:
    """Undo panels: float64 [M, K]; asserts that they are zero beyond K."""
    tokens = -(-m // 8) * 8
    # chunk, eight tokens, block, half, token of the eight, lane, value of a pair
    laid = flat.double().view(-1, tokens // 8, 8, 2, 8, 4, 2)
    # a lane's four columns are two of each half, neighbours in fp16 and every other one in bf16
    order = (1, 4, 0, 2, 5, 6, 3) if flat.dtype == torch.bfloat16 else (1, 4, 0, 2, 5, 3, 6)
    wide = laid.permute(*order).reshape(tokens, -1)[:m]
    assert not bool(wide[:, k:].any()), "not zero beyond K"
    return wide[:, :k]


def _from_wgmma(flat: torch.Tensor, m: int, k: int, form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [M, K] and scales [M, K/16] of the forms of kernels/hopper.cu; asserts that they are zero beyond K."""
    chunks, blocks = -(-k // 128), k // BLOCK
    pairs, codes_bytes = 4 * chunks, chunks * 128 * m
    if form == "wgmma4":
        both = flat[: 2 * codes_bytes].view(2 * pairs, m, 2, BLOCK)
        assert not bool(both[:, :, 1].any()), "the other half of a token's 32 bytes is not zero"
        codes = both[:, :, 0]
        scales = flat[2 * codes_bytes :].view(pairs, 4, 2).transpose(1, 2).reshape(2 * pairs, 4)
    else:
        laid = flat[:codes_bytes].view(2, pairs, m, BLOCK)
        codes = laid.transpose(0, 1).flatten(0, 1)
        scales = flat[codes_bytes:].view(2 * pairs, 8)
    values = codes.contiguous().view(torch.float8_e4m3fn).double()
    scales = scales[:, :m].contiguous().view(torch.float8_e4m3fn).double()
    assert not bool(values[blocks:].any()) and not bool(scales[blocks:].any()), "not zero beyond K"
    return values[:blocks].transpose(0, 1).reshape(m, k), scales[:blocks].T


def _lane_scales(flat: torch.Tensor, m: int, blocks: int) -> torch.Tensor:
    """Undo ``lane_scale``: [M, K/16], float64."""
    vec = 2 if blocks % 2 == 0 else 1
    return flat.double().reshape(-1, m, 32 * vec).transpose(0, 1).reshape(m, -1)[:, :blocks]


def _unpair(x: torch.Tensor, pairs: list[int]) -> torch.Tensor:
    """Undo the order of pairs within each 8 values of x [M, K]."""
    back = [pairs.index(element) for element in range(8)]
    return x.reshape(x.shape[0], -1, 8)[:, :, back].reshape(x.shape)
