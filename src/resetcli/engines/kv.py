"""Key/value storage: one growing row of keys and values per running request.

Two layouts behind one row view. `RaggedKV` (CPU) gives each request its own buffers, so that a request's
attention reads exactly its own tokens and its arithmetic depends on nothing else; that is what batch
invariance rests on. `SlotKV` (GPU) keeps all requests in one tensor a layer with a common capacity, so that
a decode step has static shapes and can be captured in a CUDA graph; capacity doubles for all rows at once.
Both grow on demand: a 32k-token limit costs memory only when tokens arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

FIRST_CAPACITY = 256


@dataclass(frozen=True)
class KVShape:
    """Layers, key/value heads and head size of a model, with the dtype and device of its cache."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


def capacity_for(tokens: int) -> int:
    """The smallest power-of-two multiple of ``FIRST_CAPACITY`` that holds ``tokens``."""
    capacity = FIRST_CAPACITY
    while capacity < tokens:
        capacity *= 2
    return capacity


class Row:
    """The cache of one request: ``length`` tokens of keys and values in every layer."""

    def __init__(self, store: RaggedKV | SlotKV, slot: int):
        self.store = store
        self.slot = slot
        self.length = 0

    def views(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, [kv_heads, capacity, head_dim] each; valid up to ``length``."""
        return self.store.views(layer, self.slot)

    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens`` in all."""
        self.store.reserve(self.slot, tokens)

    def release(self) -> None:
        """Forget the request; the slot may be used again."""
        self.store.release(self.slot)


class RaggedKV:
    """One pair of buffers [layers, kv_heads, capacity, head_dim] per slot."""

    def __init__(self, shape: KVShape, slots: int):
        self.shape = shape
        self._keys: list[torch.Tensor | None] = [None] * slots
        self._values: list[torch.Tensor | None] = [None] * slots

    def views(self, layer: int, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._keys[slot], self._values[slot]
        assert keys is not None and values is not None, "reserve() comes first"
        return keys[layer], values[layer]

    def reserve(self, slot: int, tokens: int) -> None:
        self._keys[slot] = self._grown(self._keys[slot], tokens)
        self._values[slot] = self._grown(self._values[slot], tokens)

    def _grown(self, old: torch.Tensor | None, tokens: int) -> torch.Tensor:
        if old is not None and old.shape[2] >= tokens:
            return old
        s = self.shape
        new = torch.empty(s.layers, s.kv_heads, capacity_for(tokens), s.head_dim, dtype=s.dtype, device=s.device)
        if old is not None:
            new[:, :, : old.shape[2]] = old
        return new

    def release(self, slot: int) -> None:
        self._keys[slot] = self._values[slot] = None


class SlotKV:
    """Keys and values [layers, slots, kv_heads, capacity, head_dim]; ``generation`` changes when they move."""

    def __init__(self, shape: KVShape, slots: int):
        self.shape = shape
        self.slots = slots
        self.capacity = 0
        self.generation = 0
        self.keys = self.values = torch.empty(0)

    def views(self, layer: int, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys[layer, slot], self.values[layer, slot]

    def reserve(self, slot: int, tokens: int) -> None:
        if tokens <= self.capacity:
            return
        s, old = self.shape, self.capacity
        self.capacity = capacity_for(tokens)
        self.generation += 1
        # One at a time, so that growing never holds three copies.
        self.keys = self._grow(self.keys, old, s)
        self.values = self._grow(self.values, old, s)

    def _grow(self, old: torch.Tensor, old_capacity: int, s: KVShape) -> torch.Tensor:
        # Zeros: rows beyond a request's length are masked out, and a masked NaN would still poison the sum.
        size = (s.layers, self.slots, s.kv_heads, self.capacity, s.head_dim)
        new = torch.zeros(size, dtype=s.dtype, device=s.device)
        if old_capacity:
            new[:, :, :, :old_capacity] = old
        return new

    @torch.inference_mode()
    def release(self, slot: int) -> None:
        if self.capacity:
            # A NaN left behind by a failed request would outlive its mask in the next one's value sum.
            self.keys[:, slot].zero_()
            self.values[:, slot].zero_()
