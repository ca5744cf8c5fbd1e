"""A model's NVFP4 layers on the CUDA kernels: q/k/v and gate/up as one product, everything ready before the first step.

``install`` gives each ``NVFP4Linear`` a kernel and leaves the model's own forward alone. Layers that read the same
input (``GROUPS``) are stacked: the first of them that is called computes all, the others take their part if they are
called with the very same tensor, else they compute afresh, so a model that calls them otherwise is slower but right.
Stacked layers keep views of the stacked weight, so nothing is held twice; a weight whose kernels want another layout
loses the checkpoint's. Each product is run once for every M it will meet, so that compilation, module loading and the
choice of kernel are over before a CUDA graph is captured. What cannot run on the kernels stays in torch, in one line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from resetcli.base.errors import ResetError
from resetcli.base.reporting import Reporter
from resetcli.cuda.availability import kernels_available
from resetcli.cuda.dispatch import dispatcher, layouts_for, supported, target
from resetcli.cuda.kernel_table import buckets
from resetcli.cuda.launch import device_index
from resetcli.cuda.ops import KernelWeight, prepare_weight
from resetcli.nvfp4.linear import GROUPS, NVFP4Linear

PREFILL = 2048
"""Rows of the longest prefill pass that is made ready (longer ones are compiled when they come)."""

Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Installed:
    """What ``install`` did: layers in all, layers on kernels, products that serve several layers, why the others are
    not on kernels (reason to number of layers), and measured shapes on which BF16 was faster (N, K, M)."""

    layers: int = 0
    on_kernels: int = 0
    merged: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    slower_than_bf16: list[tuple[int, int, int]] = field(default_factory=list)

    def describe(self) -> str:
        """One line."""
        text = f"{self.on_kernels} of {self.layers} NVFP4 layers run on CUDA kernels ({self.merged} merged products)"
        if self.reasons:
            text += "; the rest in torch: " + "; ".join(f"{why} ({count})" for why, count in self.reasons.items())
        if self.slower_than_bf16:
            shapes = ", ".join(f"{n}x{k} at M={m}" for n, k, m in self.slower_than_bf16[:3])
            more = f" and {len(self.slower_than_bf16) - 3} more" if len(self.slower_than_bf16) > 3 else ""
            text += f"; measured slower than BF16: {shapes}{more}"
        return text


@dataclass
class Group:
    """Layers that one product serves: their module names and the layers, in the order of the stacked rows."""

    names: list[str]
    layers: list[NVFP4Linear]

    @property
    def sizes(self) -> list[int]:
        """Rows of each layer."""
        return [layer.out_features for layer in self.layers]

    def stacked(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight uint8 [sum N, K/2] and scales e4m3 [sum N, K/16]; a single layer's are its own tensors."""
        if len(self.layers) == 1:
            return self.layers[0].weight, self.layers[0].weight_scale
        scales = torch.cat([layer.weight_scale.view(torch.uint8) for layer in self.layers])
        return torch.cat([layer.weight for layer in self.layers]), scales.view(torch.float8_e4m3fn)

    def bias(self) -> torch.Tensor | None:
        """The layers' biases one after the other, zeros for those without; None if none has any."""
        own = next((layer.bias for layer in self.layers if layer.bias is not None), None)
        if own is None:
            return None
        zeros = [torch.zeros(size, dtype=own.dtype, device=own.device) for size in self.sizes]
        pairs = zip(zeros, self.layers, strict=True)
        return torch.cat([zero if layer.bias is None else layer.bias.detach() for zero, layer in pairs])


class GroupProduct:
    """One product whose columns belong to several layers; ``part`` hands each its own."""

    def __init__(self, product: Product, bias: torch.Tensor | None, sizes: Sequence[int]):
        self.product = product
        self.bias = bias
        self.sizes = list(sizes)
        self._input: torch.Tensor | None = None
        self._parts: dict[int, torch.Tensor] = {}

    def part(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Output [..., N] of layer ``index`` for x [..., K]: a view of the group's output."""
        if len(self.sizes) == 1:
            return self._compute(x)
        # Each part is handed out once for an input: called again with the same tensor, which may have been written
        # to in the meantime, a layer computes anew.
        if x is not self._input or index not in self._parts:
            self._parts = dict(enumerate(self._compute(x).split(self.sizes, -1)))
            self._input = x
        out = self._parts.pop(index)
        if not self._parts:
            self._input = None  # else the input would be kept alive until the next step
        return out

    def _compute(self, x: torch.Tensor) -> torch.Tensor:
        out = self.product(x)
        return out if self.bias is None else out + self.bias.to(out.dtype)


@dataclass(frozen=True)
class Part:
    """The ``kernel`` of one layer."""

    group: GroupProduct
    index: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.group.part(self.index, x)


def find_groups(model: nn.Module) -> Iterator[Group]:
    """The model's NVFP4 layers, those of a block that can share one product together."""
    for prefix, parent in model.named_modules():
        children = {name: child for name, child in parent.named_children() if isinstance(child, NVFP4Linear)}
        taken: set[str] = set()
        for names in GROUPS:
            layers = [children[name] for name in names if name in children]
            if len(layers) == len(names) and _alike(layers):
                taken.update(names)
                yield Group([_join(prefix, name) for name in names], layers)
        for name, layer in children.items():
            if name not in taken:
                yield Group([_join(prefix, name)], [layer])


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _alike(layers: Sequence[NVFP4Linear]) -> bool:
    """Whether one global factor and one quantized input do for all layers (so ModelOpt exports them)."""
    return len({(layer.in_features, layer.activations, *_scales(layer)) for layer in layers}) == 1


def _scales(layer: NVFP4Linear) -> tuple[float, float | None]:
    """The layer's global scales; that of the input None where it plays no part."""
    quantized = layer.activations == "w4a4" and layer.input_scale is not None
    return (
        layer.weight_scale_2.item(),
        layer.input_scale.item() if quantized and layer.input_scale is not None else None,
    )


def attach(group: Group, product: Product, weight: torch.Tensor | None, scale: torch.Tensor | None) -> None:
    """Let ``product`` compute the group's layers, and give them views of the stacked ``weight`` and ``scale``.

    None for those: no kernel reads the checkpoint's layout, so the layers let go of it (their buffers turn "meta").
    """
    shared = GroupProduct(product, group.bias(), group.sizes)
    start = 0
    for index, (layer, size) in enumerate(zip(group.layers, group.sizes, strict=True)):
        if weight is None or scale is None:
            layer.weight, layer.weight_scale = layer.weight.to("meta"), layer.weight_scale.to("meta")
        else:
            layer.weight, layer.weight_scale = weight[start : start + size], scale[start : start + size]
        layer.drop_cache()
        layer.kernel = Part(shared, index)
        start += size


def detach(model: nn.Module) -> None:
    """Back to torch for all layers that still have the checkpoint's layout."""
    for layer in model.modules():
        if isinstance(layer, NVFP4Linear) and not layer.weight.is_meta:
            layer.kernel = None


def install(
    model: nn.Module,
    *,
    dtype: torch.dtype,
    max_batch: int,
    prefill: int = PREFILL,
    reporter: Reporter | None = None,
) -> Installed:
    """Put the NVFP4 layers of ``model``, which is on a GPU, onto the CUDA kernels.

    Args:
        dtype: of the activations.
        max_batch: rows of a decode step; the weight's layout is chosen for it.
        prefill: most rows of a prefill pass.
        reporter: told in one line what runs where; a warning if layers stay in torch.

    Raises:
        ResetError: a layer's scales are NaN, infinite or not positive (the layer is named).
    """
    reporter = reporter or Reporter()
    groups = list(find_groups(model))
    done = Installed(layers=sum(len(group.layers) for group in groups))
    if not groups:
        return done
    device = groups[0].layers[0].weight.device
    there, why = kernels_available(device) if device.type == "cuda" else (False, f"the model is on {device}")
    if not there:
        done.reasons[why] = done.layers
        reporter.warn(f"NVFP4 layers run in torch on dequantized weights: {why}")
        return done
    before, dispatcher.notify = dispatcher.notify, reporter.info
    try:
        with reporter.phase("CUDA kernels", len(groups)) as advance, torch.inference_mode():
            _install(groups, done, dtype, max_batch, prefill, advance)
    finally:
        dispatcher.notify = before
    (reporter.warn if done.reasons else reporter.info)(done.describe())
    return done


def _install(
    groups: Sequence[Group], done: Installed, dtype: torch.dtype, max_batch: int, prefill: int,
    advance: Callable[[int], None],
) -> None:  # fmt: skip
    ready: dict[tuple[Any, ...], str | tuple[str, ...]] = {}  # by shape: layouts, or why not
    for group in groups:
        first = group.layers[0]
        index = device_index(first.weight.device)
        n, k, activations = sum(group.sizes), first.in_features, first.activations
        shape = (index, n, k, activations)
        try:
            if shape not in ready:
                ready[shape] = _get_ready(group, index, dtype, max_batch, prefill, done)
            outcome = ready[shape]
            if isinstance(outcome, str):
                done.reasons[outcome] += len(group.layers)
            else:
                weight, scale = group.stacked()
                product = _prepare(group, weight, scale, outcome)
                keep = "rows" in outcome
                attach(group, product, weight if keep else None, scale if keep else None)
                done.on_kernels += len(group.layers)
                done.merged += len(group.layers) > 1
        except ResetError as exc:
            raise ResetError(f"layer {group.names[0]}: {exc}") from exc
        advance(1)


def _prepare(group: Group, weight: torch.Tensor, scale: torch.Tensor, layouts: tuple[str, ...]) -> KernelWeight:
    first = group.layers[0]
    return prepare_weight(
        weight, scale, first.weight_scale_2, first.input_scale, activations=first.activations, layouts=layouts
    )


def _get_ready(
    group: Group, index: int, dtype: torch.dtype, max_batch: int, prefill: int, done: Installed
) -> str | tuple[str, ...]:
    """Layouts for a shape, once its product has run for every M it will meet; or why it has to stay in torch."""
    where = target(index)
    first = group.layers[0]
    n, k, activations = sum(group.sizes), first.in_features, first.activations
    many = buckets(max(prefill, max_batch))
    decode = [max_batch]  # a decode step always has all rows
    for m in [*decode, *many]:
        there, why = supported(where.arch, m, n, k, dtype, activations)
        if not there:
            return f"{n}x{k} at M={m}: {why}"
    layouts = layouts_for(where, decode, many, n, k, dtype, activations)
    weight, scale = group.stacked()
    _prepare(group, weight, scale, ())  # bad values are the checkpoint's fault, not one of the kernels
    try:
        product = _prepare(group, weight, scale, layouts)
        for m in dict.fromkeys([*decode, *many]):
            product(torch.zeros(m, k, dtype=dtype, device=first.weight.device))
        torch.cuda.synchronize(index)
    except ResetError as exc:
        return str(exc)
    slower = [m for m in decode if product.plan(m, dtype).slower_than_bf16]
    done.slower_than_bf16 += [(n, k, m) for m in slower]
    return layouts
