"""CPU linear layers for decoding: weights packed once for MKL, one product for layers that share an input.

Why: at 1 to 8 rows a float32 product is bound by reading the weights, and MKL's general matrix product repacks
them at every call. On weights packed ahead, a single row costs what torch's matrix-vector product costs, 8 rows
cost half as much as before, and each row's result is bit-equal whatever the number of rows and wherever the row
stands (packed for two rows or more; torch's own products choose another kernel for one row). `settle_rows` checks
the claim on this machine for each shape, because a library may choose otherwise elsewhere.

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

from resetcli.nvfp4.linear import NVFP4Linear

Layer = nn.Linear | NVFP4Linear
GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def available() -> bool:
    """Whether this torch build has MKL's packed product."""
    return torch.backends.mkl.is_available() and hasattr(torch.ops.mkl, "_mkl_linear")


class PackedWeight:
    """A float32 weight [N, K] in MKL's packed layout; ``rows_hint`` >= 2 is the row count it is packed for.

    ``pad_lone_row``: a single row is computed as two, because one row alone would take another kernel.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, rows_hint: int):
        self.n, self.k = weight.shape
        self.bias = bias
        self.pad_lone_row = False
        self.packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.detach().float().contiguous(), max(rows_hint, 2))
        # The operation asks the dense weight for its shape alone; this one has no storage to speak of.
        self._shape_only = torch.zeros(1, 1).expand(self.n, self.k)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x float32 [..., K] to [..., N]."""
        flat = x.reshape(-1, self.k)
        rows = flat.shape[0]
        if rows == 1 and self.pad_lone_row:
            return self._product(flat.repeat(2, 1), 2)[:1].view(*x.shape[:-1], self.n)
        return self._product(flat, rows).view(*x.shape[:-1], self.n)

    def _product(self, flat: torch.Tensor, rows: int) -> torch.Tensor:
        # Naming the rows at hand as those it was packed for is what selects the packed product.
        return torch.ops.mkl._mkl_linear(flat, self.packed, self._shape_only, self.bias, rows)


class SharedInput:
    """Layers applied to one and the same tensor: one activation quantization, one product, parts handed out."""

    def __init__(self, layers: Sequence[Layer], rows_hint: int):
        first = layers[0]
        self.quantize = first.quantize_input if isinstance(first, NVFP4Linear) and first.activations == "w4a4" else None
        weights = [_dense(layer) for layer in layers]
        biases = [layer.bias for layer in layers]
        bias = None
        if any(b is not None for b in biases):
            pairs = zip(weights, biases, strict=True)
            bias = torch.cat([w.new_zeros(w.shape[0]) if b is None else b.detach().float() for w, b in pairs])
        self.sizes = [w.shape[0] for w in weights]
        self.weight = PackedWeight(weights[0] if len(weights) == 1 else torch.cat(weights), bias, rows_hint)
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


def pack_model(model: nn.Module, rows_hint: int) -> list[PackedWeight]:
    """Replace every Linear and NVFP4Linear of ``model`` by packed ones, in place; returns the packed weights.

    The dense weights are freed as it goes, except a tied embedding's, which lookups still need.
    """
    packed: list[PackedWeight] = []
    for parent in list(model.modules()):
        for names in _groups(parent):
            layers = [getattr(parent, name) for name in names]
            shared = SharedInput(layers, rows_hint)
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


def _dense(layer: Layer) -> torch.Tensor:
    if isinstance(layer, NVFP4Linear):
        return layer.dequantized_weight(torch.float32)
    return layer.weight.detach().float()


def settle_rows(weights: list[PackedWeight], max_rows: int, seed: int = 0) -> bool:
    """Set ``pad_lone_row`` where one row alone gives other bits than among others.

    Returns:
        Whether, for each distinct shape, a row keeps its bits from 1 to ``max_rows`` rows, in any position.
    """
    generator = torch.Generator().manual_seed(seed)
    by_shape: dict[tuple[int, int], list[PackedWeight]] = {}
    for weight in weights:
        by_shape.setdefault((weight.n, weight.k), []).append(weight)
    for (_, k), alike in by_shape.items():
        first = alike[0]
        x = torch.randn(max(max_rows, 2), k, generator=generator)
        whole = first(x)
        if any(not torch.equal(first(x[:rows].contiguous()), whole[:rows]) for rows in range(2, x.shape[0])):
            return False
        order = torch.randperm(x.shape[0], generator=generator)
        if not torch.equal(first(x[order].contiguous()), whole[order]):
            return False
        lone = all(torch.equal(first(x[i : i + 1]), whole[i : i + 1]) for i in range(x.shape[0]))
        for weight in alike:
            weight.pad_lone_row = not lone
    return True


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
