"""One product to time, with inputs that hide nothing and a float64 answer to check against.

Codes are uniform over all 16 values and block scales log-uniform over 2^-8 .. 2^8: with narrow scales float32 sums
are nearly exact and a wrong kernel passes. Everything is drawn anew for each shape. The answer is worked out here
straight from the layout (design 1.2) and shares no code with the layers it judges.

Activation codes can differ lawfully when a value sits on a rounding boundary to within the last bits; such
elements, and only they, widen the bound by the step they may take.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from resetcli.cuda.shapes import BLOCK, Shape

_GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_NEAR = 2.0**-18
_CHUNK = 1 << 22


@dataclass
class Problem:
    """Operands and their true products, on the CPU or on the GPU that they are for.

    ``packed`` uint8 [N, K/2], ``scales`` float8_e4m3fn [N, K/16], ``global_scale`` and ``input_scale`` floats,
    ``x`` float32 [M, K] whose values bfloat16 holds exactly. ``plain`` is X (codes*scales)^T without the global
    scale: what a 16-bit baseline computes, since codes*scales is exact in bfloat16.
    """

    shape: Shape
    packed: torch.Tensor
    scales: torch.Tensor
    global_scale: float
    input_scale: float
    x: torch.Tensor
    plain: torch.Tensor
    plain_size: torch.Tensor
    quantized: torch.Tensor
    quantized_size: torch.Tensor
    quantized_slack: torch.Tensor


@dataclass(frozen=True)
class Verdict:
    """``worst``: the largest error as a multiple of its bound (over 1 is wrong; NaN counts as infinite)."""

    correct: bool
    worst: float


def make_problem(shape: Shape, m: int, seed: int, device: torch.device | str = "cpu") -> Problem:
    """Fresh random operands for ``shape`` with ``m`` rows of X, and the float64 answers, all fixed by ``seed``.

    Drawn and worked out on ``device``; a seed means other numbers on another kind of device.
    """
    draw = torch.Generator(device).manual_seed(seed)
    n, k = shape.n, shape.k
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=draw, device=device)
    scales = torch.exp2(torch.rand(n, k // BLOCK, generator=draw, device=device) * 16 - 8).to(torch.float8_e4m3fn)
    global_scale = float(torch.rand((), generator=draw, device=device) + 0.5) * 1e-3
    spread = torch.exp2(torch.rand(m, k // BLOCK, 1, generator=draw, device=device) * 8 - 4)
    x = (torch.randn(m, k // BLOCK, BLOCK, generator=draw, device=device) * spread).reshape(m, k).bfloat16().float()
    input_scale = float((x.abs().amax() / (6 * 448)).float())
    xq, slack = quantize_activations(x, input_scale)
    plain, plain_size, slack_size = (torch.empty(r, n, dtype=torch.float64, device=device) for r in (2 * m, 2 * m, m))
    both, extra = torch.cat([x.double(), xq]), slack
    rows = max(1, _CHUNK // k)
    for start in range(0, n, rows):
        w = unpack(packed[start : start + rows], scales[start : start + rows]).double()
        plain[:, start : start + rows] = both @ w.T
        w = w.abs_()
        sizes = torch.cat([both.abs(), extra]) @ w.T
        plain_size[:, start : start + rows] = sizes[: 2 * m]
        slack_size[:, start : start + rows] = sizes[2 * m :]
    # W4A4 answers carry both global factors of W; those of X are already inside xq.
    return Problem(shape, packed, scales, global_scale, input_scale, x, plain[:m], plain_size[:m],
                   plain[m:] * global_scale, plain_size[m:] * global_scale, slack_size * global_scale)  # fmt: skip


def unpack(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """codes * scales without the global scale: float32 [N, K] of packed uint8 [N, K/2], e4m3 [N, K/16]; exact."""
    # Float32 is exact here: two significant bits of a code times four of a scale.
    table = torch.tensor([*_GRID, *(-value for value in _GRID)], device=packed.device)
    byte = torch.arange(256, device=packed.device)
    pairs = torch.stack([table[byte & 15], table[byte >> 4]], dim=-1)
    values = pairs.index_select(0, packed.flatten().int()).view(packed.shape[0], -1, BLOCK)
    return (values * scales.float().unsqueeze(-1)).flatten(1)


def quantize_activations(x: torch.Tensor, input_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(quantized X, lawful deviation) of x float32 [M, K], both float64 [M, K], by the rule of design 1.2.

    s = e4m3(min(amax_block / (6 input_scale), 448)), x -> e2m1(x / (s input_scale)) s input_scale, ties to even.
    """
    m, k = x.shape
    blocks = x.double().view(m, k // BLOCK, BLOCK)
    wanted = (blocks.abs().amax(-1, keepdim=True) / (6 * input_scale)).clamp(2.0**-9, 448.0)
    step = wanted.float().to(torch.float8_e4m3fn)
    below = (wanted * (1 - _NEAR)).float().to(torch.float8_e4m3fn).double()
    above = (wanted * (1 + _NEAR)).clamp(max=448).float().to(torch.float8_e4m3fn).double()
    scale = step.double() * input_scale
    ratio = (blocks / scale).abs()
    middles, grid = (torch.tensor(values, dtype=torch.float64, device=x.device) for values in (_MIDDLES, _GRID))
    up, down = torch.bucketize(ratio, middles, right=True), torch.bucketize(ratio, middles, right=False)
    # On a boundary the two differ by one code; the even code wins.
    code = torch.where((up != down) & (up % 2 == 1), down, up)
    value = torch.copysign(grid[code], blocks) * scale
    near = torch.bucketize(ratio * (1 + _NEAR), middles, right=True) != torch.bucketize(ratio * (1 - _NEAR), middles)
    gap = grid[(code + 1).clamp(max=7)] - grid[(code - 1).clamp(min=0)]
    slack = torch.where(near, gap * scale, torch.zeros_like(scale)) + torch.where(below != above, blocks.abs(), 0.0)
    return value.reshape(m, k), slack.reshape(m, k)


def check(
    y: torch.Tensor, truth: torch.Tensor, size: torch.Tensor, slack: torch.Tensor | None, tolerance: float,
    rounding: float = 1.0,
) -> Verdict:  # fmt: skip
    """Whether |y - truth| <= tolerance * size + slack + rounding of y's own type, element by element.

    Args:
        y: a backend's output [M, N] in its own type, on any device.
        truth, size, slack: float64 [M, N]: the answer, the sum of |x||w| behind it, lawful deviations.
        tolerance: accumulation and operand rounding, relative to ``size``.
        rounding: of y's type, in its epsilons; half of one is what rounding once to nearest costs at most.
    """
    got = y.detach().to(truth.device).double()
    off = tolerance * size if slack is None else tolerance * size + slack
    # What is rounded is not the answer, but what lies up to ``off`` beside it.
    bound = off + rounding * torch.finfo(y.dtype).eps * (truth.abs() + off) + torch.finfo(torch.float64).tiny
    worst = ((got - truth).abs() / bound).nan_to_num(nan=float("inf")).max().item()
    return Verdict(worst <= 1, worst)


def row_error(y: torch.Tensor, truth: torch.Tensor, slack: torch.Tensor | None = None) -> float:
    """The largest ||y - truth|| / ||truth|| of a row, of what lies beyond ``slack`` [M, N] in each element."""
    error = (y.detach().to(truth.device).double() - truth).abs()
    if slack is not None:
        error = (error - slack).clamp(min=0)
    return (error.norm(dim=1) / truth.norm(dim=1)).nan_to_num(nan=float("inf")).max().item()
