"""A decoder layer's projections in one CUDA graph: qkv, o, gate/up, down, with our kernels and with cuBLAS in BF16.

Everything is on: activations are quantized before each product and launches overlap as dispatch says. The inputs of
the four products are fixed, so both chains do nothing but projections. A second pair of chains also computes
silu(gate) * up from the third product's output: fused into the quantization in ours, as torch's two kernels in the
other. Copies of the layer rotate, so that each weight is cold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from resetcli.base.errors import ResetError
from resetcli.base.reporting import Reporter
from resetcli.cuda.activations import UNQUANTIZED, quantize_silu
from resetcli.cuda.dispatch import Plan, dispatcher, target
from resetcli.cuda.families.base import Family
from resetcli.cuda.launch import device_index
from resetcli.cuda.ops import execute
from resetcli.cuda.shapes import BLOCK, PRESETS, Shape
from resetcli.cuda.timing import Candidate, last_level_cache, reason, time_cuda
from resetcli.nvfp4 import codec

PRESET_NAMES = ("qwen3-8b", "qwen3-14b", "qwen3-32b")
COLD = 4.0
OFF = 1e-2
"""Error ||Y - R|| / ||R|| of a product above which a chain is wrong."""
_WEIGHT_SCALE_2 = 0.01


def layer_chains(
    ms: Sequence[int],
    presets: Sequence[str] = PRESET_NAMES,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    seconds: float = 10.0,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Microseconds a layer.

    Args:
        seconds: for the timed rounds in all, at least 10 a chain.

    Returns:
        {"rows": [{"preset", "m", "copies", "us", "bf16_us", "speedup", "silu_us", "bf16_silu_us", "silu_speedup",
        "error" (largest ||Y-R||/||R|| of a product), "correct", "plans", "why" (where it failed)}]}.
    """
    reporter = reporter or Reporter()
    rows: list[dict[str, Any]] = []
    with torch.inference_mode(), reporter.phase("layers", total=len(presets) * len(ms)) as advance:
        for preset in presets:
            layer = _Layer(PRESETS[preset], device, dtype, seed)
            for m in ms:
                try:
                    row = layer.run(m, seconds / (len(presets) * len(ms)))
                except (ResetError, RuntimeError) as exc:
                    row = {"m": m, "correct": False, "why": reason(exc)}
                rows.append({"preset": preset, **row})
                advance(1)
            del layer
            torch.cuda.empty_cache()
    return {"rows": rows}


class _Layer:
    """Copies of a layer's four weights, in 4 bit and in BF16."""

    def __init__(self, shapes: Sequence[Shape], device: torch.device, dtype: torch.dtype, seed: int):
        self.shapes, self.device, self.dtype = shapes, device, dtype
        self.where = target(device_index(device))
        self.draw = torch.Generator(device).manual_seed(seed)
        size = sum(shape.elements for shape in shapes) * 9 // BLOCK
        self.copies = max(2, int(-(-COLD * last_level_cache(device) // size)))
        self.weights = [[self._weight(shape) for shape in shapes] for _ in range(self.copies)]
        self.plain = [
            [torch.randn(s.n, s.k, generator=self.draw, device=device, dtype=dtype) for s in shapes]
            for _ in range(self.copies)
        ]
        self._prepared: dict[tuple[str, int], list[tuple[torch.Tensor, ...]]] = {}

    def _weight(self, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
        codes = torch.randint(
            0, 256, (shape.n, shape.k // 2), dtype=torch.uint8, generator=self.draw, device=self.device
        )
        spread = torch.rand(shape.n, shape.k // BLOCK, generator=self.draw, device=self.device) * 10 - 5
        return codes, torch.exp2(spread).to(torch.float8_e4m3fn)

    def prepared(self, family: Family, place: int) -> list[tuple[torch.Tensor, ...]]:
        """The weight at ``place`` in the family's layout, a copy each."""
        key = family.layout, place
        if key not in self._prepared:
            self._prepared[key] = [family.prepare(*weights[place]) for weights in self.weights]
        return self._prepared[key]

    def run(self, m: int, seconds: float) -> dict[str, Any]:
        """The row of ``m`` tokens."""
        plans = [dispatcher.plan(self.where, m, s.n, s.k, self.dtype, "w4a4") for s in self.shapes]
        xs = [torch.randn(m, s.k, generator=self.draw, device=self.device).to(self.dtype) for s in self.shapes]
        outs = [torch.full((m, s.n), float("nan"), dtype=self.dtype, device=self.device) for s in self.shapes]
        scales = [float(x.abs().amax()) / (codec.E2M1_MAX * codec.E4M3_MAX) for x in xs]
        weights = [self.prepared(plan.family, place) for place, plan in enumerate(plans)]

        def product(place: int, copy: int) -> None:
            execute(plans[place], xs[place], weights[place][copy], outs[place], k=self.shapes[place].k,
                    weight_scale_2=_WEIGHT_SCALE_2, input_scale=scales[place])  # fmt: skip

        def ours(copy: int) -> None:
            for place in range(4):
                product(place, copy)

        def ours_silu(copy: int) -> None:
            for place in range(3):
                product(place, copy)
            self._down(plans[3], outs[2], weights[3][copy], outs[3], scales[3])

        def bf16(copy: int) -> list[torch.Tensor]:
            return [F.linear(x, w) for x, w in zip(xs, self.plain[copy], strict=True)]

        def bf16_silu(copy: int) -> list[torch.Tensor]:
            w = self.plain[copy]
            found = [F.linear(x, w) for x, w in zip(xs[:3], w, strict=False)]
            gate, up = found[2].chunk(2, dim=1)
            return [*found, F.linear(F.silu(gate) * up, w[3])]

        ours(0)
        error = max(self._error(place, xs[place], outs[place], scales[place]) for place in range(4))
        chains: dict[str, Callable[[int], Any]] = {
            "us": ours, "bf16_us": bf16, "silu_us": ours_silu, "bf16_silu_us": bf16_silu,
        }  # fmt: skip
        candidates = [
            Candidate(name, [partial(chain, copy) for copy in range(self.copies)], 0, [])
            for name, chain in chains.items()
        ]
        failed: dict[str, str] = {}
        time_cuda(candidates, seconds=seconds, least=10, most=100, failed=failed)
        row: dict[str, Any] = {"m": m, "copies": self.copies, "error": error, "correct": error <= OFF}
        row |= {c.name: float(np.median(c.seconds)) * 1e6 if c.seconds else None for c in candidates}
        for name, over, under in (("speedup", "bf16_us", "us"), ("silu_speedup", "bf16_silu_us", "silu_us")):
            row[name] = row[over] / row[under] if row[over] and row[under] else None
        row["plans"] = [
            {"n": s.n, "k": s.k, "family": p.family.name, "pdl": p.pdl, "source": p.source, "config": p.config}
            for s, p in zip(self.shapes, plans, strict=True)
        ]
        if failed:
            row["why"] = "; ".join(f"{name}: {why}" for name, why in failed.items())
        return row

    def _down(
        self, plan: Plan, gate_up: torch.Tensor, prepared: tuple[torch.Tensor, ...], out: torch.Tensor, scale: float
    ) -> None:
        """The last product on silu(gate) * up."""
        shape = self.shapes[3]
        gate, up = gate_up[:, : shape.k], gate_up[:, shape.k :]
        acts = quantize_silu(gate, up, scale, plan.form, pdl=bool(plan.pdl))
        alpha = _WEIGHT_SCALE_2 * (1 if plan.form in UNQUANTIZED else scale)
        plan.family.run(plan.config, acts, prepared, out, alpha, n=shape.n, k=shape.k, pdl=plan.pdl)

    def _error(self, place: int, x: torch.Tensor, out: torch.Tensor, scale: float) -> float:
        """||Y - R|| / ||R|| of one product of the first copy, R in float64; infinite for NaN."""
        codes, scales = self.weights[0][place]
        wide = codec.fake_quantize_activation(x.float(), torch.tensor(scale, device=self.device)).double()
        factor = torch.tensor(_WEIGHT_SCALE_2, device=self.device)
        rows = max(BLOCK, (1 << 26) // self.shapes[place].k)
        total = wrong = 0.0
        for start in range(0, len(codes), rows):
            part = slice(start, start + rows)
            right = wide @ codec.dequantize(codes[part], scales[part], factor).double().T
            total += float(right.square().sum())
            wrong += float((out[:, part].double() - right).square().sum())
        error = (wrong / total) ** 0.5
        return error if error == error else float("inf")


COLUMNS = ("model", "M", "us", "BF16 us", "speedup", "with SiLU", "BF16", "speedup", "check")


def table(document: dict[str, Any]) -> list[list[str]]:
    """The rows as strings under ``COLUMNS``."""
    lines = []
    for row in document["rows"]:
        figures = [row.get(name) for name in ("us", "bf16_us", "speedup", "silu_us", "bf16_silu_us", "silu_speedup")]
        cells = [f"{value:.2f}" if value is not None else "" for value in figures]
        lines.append([row["preset"], str(row["m"]), *cells, "ok" if row["correct"] else row.get("why", "WRONG")])
    return lines
