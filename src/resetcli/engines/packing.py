"""CPU linear layers for decoding: weights packed once, one product for layers that share an input.

Why: at 1 to 8 rows a product is bound by reading the weights, and torch's general product repacks them at every call.

- NVFP4 weights: an E2M1 code times its E4M3 scale has at most 6 significant bits, so the weight without its global
  scale is exact in float16. FBGEMM multiplies float32 rows by float16 weights with float32 sums: half the bytes, and
  no rounding of the weight; the global scale goes onto the result.
- Other weights (BF16 models, lm_head), where float16 would round: MKL's product on float32 weights packed ahead. A
  single row costs what torch's matrix-vector product costs, 8 rows half of torch's product.

In both, each row's result shall be bit-equal whatever the number of rows and wherever the row stands (torch's own
products choose another kernel for one row). Where a library chooses by the number of rows too (one row alone; with AVX2
what four or six leave over), rows are added: `settle_rows` finds out on this machine, for each shape, how many.

q/k/v and gate/up read the same activations with the same input scale: they are quantized once and multiplied by one
stacked weight. The model's own forward stays as it is: the first layer of a group computes all, the others take
their part, recognised by the identity of the input tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from resetcli.nvfp4 import codec
from resetcli.nvfp4.linear import GROUPS, NVFP4Linear
from resetcli.nvfp4.tables import TableQuantizer

Layer = nn.Linear | NVFP4Linear

ROWS_HINT = 8
"""Rows that weights are packed for, the same for every batch size: another packing could round otherwise."""
PADDINGS = ((1, 1), (2, 1), (4, 4), (8, 8))
"""Rows that a product has: the least, and what their number is a multiple of; the cheapest first."""
_TRIED = 16
"""Rows up to which `settle_rows` tries at least, so that runs of different batch sizes settle for the same."""


def available() -> bool:
    """Whether this torch build has MKL's packed product."""
    return torch.backends.mkl.is_available() and hasattr(torch.ops.mkl, "_mkl_linear")


def half_available() -> bool:
    """Whether this torch build has FBGEMM's product on float16 weights."""
    return torch.backends.quantized.engine in ("x86", "fbgemm") and hasattr(torch.ops.quantized, "linear_dynamic_fp16")


class PackedWeight:
    """A weight [N, K] in MKL's packed float32 layout.

    ``padding``: one of ``PADDINGS``.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        self.n, self.k = weight.shape
        self.bias = bias
        self.padding = PADDINGS[0]
        self._pack(weight)

    def _pack(self, weight: torch.Tensor) -> None:
        self.packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.detach().float().contiguous(), ROWS_HINT)
        # The operation asks the dense weight for its shape alone; this one has no storage to speak of.
        self._shape_only = torch.zeros(1, 1).expand(self.n, self.k)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x float32 [..., K] to [..., N]."""
        flat = x.reshape(-1, self.k)
        least, multiple = self.padding
        rows = flat.shape[0]
        if rows and (more := max(least, -(-rows // multiple) * multiple) - rows):
            return self._product(torch.cat([flat, flat[:1].expand(more, -1)]))[:rows].view(*x.shape[:-1], self.n)
        return self._product(flat).view(*x.shape[:-1], self.n)

    def _product(self, flat: torch.Tensor) -> torch.Tensor:
        # Naming the rows at hand as those it was packed for is what selects the packed product.
        return torch.ops.mkl._mkl_linear(flat, self.packed, self._shape_only, self.bias, flat.shape[0])


class HalfWeight(PackedWeight):
    """A weight [N, K] = ``scale`` * ``weight`` with ``weight`` exact in float16, packed by FBGEMM.

    Raises:
        ValueError: ``weight`` is not exact in float16.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, scale: float):
        if not torch.equal(weight.half().float(), weight):
            raise ValueError("the weight is not exact in float16")
        self.scale = scale
        super().__init__(weight, bias)

    def _pack(self, weight: torch.Tensor) -> None:
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), None)

    def _product(self, flat: torch.Tensor) -> torch.Tensor:
        out = torch.ops.quantized.linear_dynamic_fp16(flat, self.packed).mul_(self.scale)
        return out if self.bias is None else out.add_(self.bias)


class SharedInput:
    """Layers applied to one and the same tensor: one activation quantization, one product, parts handed out."""

    def __init__(self, layers: Sequence[Layer]):
        first = layers[0]
        self.quantize = None
        if isinstance(first, NVFP4Linear) and first.activations == "w4a4" and first.input_scale is not None:
            self.quantize = TableQuantizer(first.input_scale)
        self.sizes = [layer.out_features for layer in layers]
        self.weight = _packed(layers)
        self._input: torch.Tensor | None = None
        self._parts: dict[int, torch.Tensor] = {}

    def part(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Output of layer ``index`` for x [..., K]."""
        if x is not self._input or index not in self._parts:
            y = self.weight(x if self.quantize is None else self.quantize(x))
            if len(self.sizes) == 1:
                return y
            self._parts = dict(enumerate(y.split(self.sizes, -1)))
            self._input = x
        out = self._parts.pop(index)
        if not self._parts:
            # Holding the input any longer would keep it alive, or take a recycled tensor for the same one.
            self._input = None
        return out


class PackedLinear(nn.Module):
    """Stands where a Linear or NVFP4Linear stood; computes its part of a `SharedInput`."""

    def __init__(self, shared: SharedInput, index: int, in_features: int, out_features: int):
        super().__init__()
        self.shared = shared
        self.index = index
        self.in_features = in_features
        self.out_features = out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared.part(self.index, x)


def pack_model(model: nn.Module) -> list[PackedWeight]:
    """Replace every Linear and NVFP4Linear of ``model`` by packed ones, in place; returns the packed weights.

    The dense weights are freed as it goes, except a tied embedding's, which lookups still need.
    """
    packed: list[PackedWeight] = []
    for parent in list(model.modules()):
        for names in _groups(parent):
            layers = [getattr(parent, name) for name in names]
            shared = SharedInput(layers)
            packed.append(shared.weight)
            for index, (name, layer) in enumerate(zip(names, layers, strict=True)):
                setattr(parent, name, PackedLinear(shared, index, layer.in_features, layer.out_features))
    return packed


def _groups(parent: nn.Module) -> Iterator[tuple[str, ...]]:
    """Names of ``parent``'s linear children, those that share an input together."""
    names = [name for name, child in parent.named_children() if isinstance(child, Layer)]
    for group in GROUPS:
        if all(name in names for name in group) and _same_input([getattr(parent, name) for name in group]):
            yield group
            names = [name for name in names if name not in group]
    yield from ((name,) for name in names)


def _same_input(layers: Sequence[Layer]) -> bool:
    """Whether the layers quantize their input alike (or not at all)."""
    if len({(type(layer), layer.in_features) for layer in layers}) > 1:
        return False
    return len({_input_rule(layer) for layer in layers}) == 1


def _input_rule(layer: Layer) -> float | None:
    """The scale by which a layer quantizes its input, None if it does not."""
    if not isinstance(layer, NVFP4Linear) or layer.activations != "w4a4" or layer.input_scale is None:
        return None
    return layer.input_scale.item()


def _packed(layers: Sequence[Layer]) -> PackedWeight:
    """The layers' weights stacked and packed, in float16 where that is exact."""
    bias = None
    if any(layer.bias is not None for layer in layers):
        zeros = [torch.zeros(layer.out_features) for layer in layers]
        pairs = zip(zeros, layers, strict=True)
        bias = torch.cat([zero if layer.bias is None else layer.bias.detach().float() for zero, layer in pairs])
    scale = _global_scale(layers)
    if scale is not None and half_available():
        one = torch.ones(())
        parts = [codec.dequantize(x.weight, x.weight_scale, one) for x in layers if isinstance(x, NVFP4Linear)]
        return HalfWeight(torch.cat(parts), bias, scale)
    return PackedWeight(torch.cat([_dense(layer) for layer in layers]), bias)


def _global_scale(layers: Sequence[Layer]) -> float | None:
    """The global scale that all layers share; None if there is none."""
    scales = {layer.weight_scale_2.item() if isinstance(layer, NVFP4Linear) else None for layer in layers}
    return scales.pop() if len(scales) == 1 else None


def _dense(layer: Layer) -> torch.Tensor:
    if isinstance(layer, NVFP4Linear):
        return codec.dequantize(layer.weight, layer.weight_scale, layer.weight_scale_2)
    return layer.weight.detach().float()


def settle_rows(weights: list[PackedWeight], max_rows: int, seed: int = 0) -> bool:
    """Set each weight's ``padding`` to the first with which a row has the same bits alone and among others.

    Returns:
        Whether there is one for each distinct shape, from 1 to ``max_rows`` rows and in any position. If not, no weight
        is padded.
    """
    generator = torch.Generator().manual_seed(seed)
    by_shape: dict[tuple[type, int, int], list[PackedWeight]] = {}
    for weight in weights:
        by_shape.setdefault((type(weight), weight.n, weight.k), []).append(weight)
    for (_, _, k), alike in by_shape.items():
        x = torch.randn(max(max_rows, _TRIED), k, generator=generator)
        order = torch.randperm(x.shape[0], generator=generator)
        for padding in PADDINGS:
            alike[0].padding = padding
            if _keeps_bits(alike[0], x, order):
                break
        else:
            for weight in weights:
                weight.padding = PADDINGS[0]
            return False
        for weight in alike:
            weight.padding = padding
    return True


def _keeps_bits(weight: PackedWeight, x: torch.Tensor, order: torch.Tensor) -> bool:
    """Whether rows of ``x`` have the bits that they have among all, for any number of rows, alone, and in ``order``."""
    whole = weight(x)
    return (
        all(torch.equal(weight(x[:rows].contiguous()), whole[:rows]) for rows in range(1, x.shape[0]))
        and torch.equal(weight(x[order].contiguous()), whole[order])
        and all(torch.equal(weight(x[i : i + 1]), whole[i : i + 1]) for i in range(x.shape[0]))
    )


def fuse_norms(model: nn.Module) -> None:
    """Let RMSNorm modules call torch's one operation instead of six, where that gives the very same bits."""
    for module in model.modules():
        eps = getattr(module, "variance_epsilon", None)
        weight = getattr(module, "weight", None)
        if eps is None or not isinstance(weight, torch.Tensor) or weight.dim() != 1 or list(module.children()):
            continue
        probe = torch.randn(3, 1, weight.shape[0], dtype=weight.dtype, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            if torch.equal(module(probe), F.rms_norm(probe, weight.shape, weight, eps)):
                module.forward = partial(F.rms_norm, normalized_shape=weight.shape, weight=weight, eps=eps)
