"""Where keys and values live: one slot per prompt for its whole group, one slot per row for its own tokens.

Both stores keep their used slots dense (0 … n - 1), so that attention reads plain views and never gathers or
concatenates. A slot that is freed in the middle is filled by moving the last one into it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 32
"""Lengths are rounded up to this many tokens: masked zeros at the end then leave float32 sums as they are, bit for bit.
A sum adds four vectors of eight at a time and treats what fills no four of them differently."""

_SUFFIX_STEP = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """What a model's keys and values look like; `layers` holds (kv_heads, head_dim) of each layer."""

    layers: tuple[tuple[int, int], ...]
    queries_per_key: int  # attention heads that share a key
    dtype: torch.dtype
    device: torch.device

    def empty(self, layer: int, slots: int, length: int) -> Tensor:
        """Return zeroed room for `slots` sequences in one layer: (slots, kv_heads, length, head_dim)."""
        kv_heads, head_dim = self.layers[layer]
        return torch.zeros((slots, kv_heads, length, head_dim), dtype=self.dtype, device=self.device)


def round_up(length: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `length`."""
    return -(-length // step) * step


class SlotStore:
    """Dense slots of keys and values for every layer, with room that grows in both directions."""

    def __init__(self, shape: KVShape) -> None:
        self._shape = shape
        self._slots = 0
        self._length = 0
        self.num_used = 0
        self.keys = [shape.empty(layer, 0, 0) for layer in range(len(shape.layers))]
        self.values = [shape.empty(layer, 0, 0) for layer in range(len(shape.layers))]

    def reserve(self, slots: int, length: int) -> None:
        """Make room for `slots` sequences of `length` tokens, keeping what is stored; one layer moves at a time."""
        if slots <= self._slots and length <= self._length:
            return
        slots, length = max(slots, self._slots), max(length, self._length)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                new = self._shape.empty(layer, slots, length)
                kept = min(self.num_used, self._slots)
                new[:kept, :, : self._length] = old[:kept]
                tensors[layer] = new
        self._slots, self._length = slots, length

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot over another."""
        for tensors in (self.keys, self.values):
            for tensor in tensors:
                tensor[target, :, :length] = tensor[source, :, :length]

    def clear(self, slot: int) -> None:
        """Zero a slot that may hold NaN: a masked NaN still poisons the sum that it is masked out of."""
        if slot < self._slots:
            for tensors in (self.keys, self.values):
                for tensor in tensors:
                    tensor[slot].zero_()

    @property
    def num_bytes(self) -> int:
        """Bytes that the store holds."""
        return sum(tensor.nbytes for tensors in (self.keys, self.values) for tensor in tensors)


class SuffixCache(SlotStore):
    """Keys and values of each row's own tokens; slot i belongs to active row i."""

    def reserve_rows(self, rows: int, length: int) -> None:
        """Make room for `rows` rows of `length` tokens each; room grows in steps and is kept."""
        self.reserve(rows, round_up(length, _SUFFIX_STEP))


class PrefixPool:
    """Keys and values of live prompts, each stored once, in classes of similar length."""

    def __init__(self, shape: KVShape) -> None:
        self._shape = shape
        self.classes: dict[int, PrefixClass] = {}

    def add(self, owner: object, length: int) -> PrefixSlot:
        """Give `owner`'s prompt of `length` tokens a slot."""
        capacity = _class_length(length)
        store = self.classes.setdefault(capacity, PrefixClass(self._shape, capacity))
        return store.add(owner, length)

    def remove(self, slot: PrefixSlot) -> None:
        """Free a slot; the last slot of its class may move into it."""
        slot.store.remove(slot)
        if not slot.store.slots:
            del self.classes[slot.store.capacity]

    def clear(self) -> None:
        """Free every slot."""
        self.classes.clear()

    @property
    def num_bytes(self) -> int:
        """Bytes that the pool holds."""
        return sum(store.num_bytes for store in self.classes.values())


class PrefixClass(SlotStore):
    """The prompts whose length rounds up to the same capacity."""

    def __init__(self, shape: KVShape, capacity: int) -> None:
        super().__init__(shape)
        self.capacity = capacity
        self.slots: list[PrefixSlot] = []

    def add(self, owner: object, length: int) -> PrefixSlot:
        """Append a slot."""
        if len(self.slots) == self._slots:
            self.reserve(self._slots + max(1, self._slots // 4), self.capacity)
        slot = PrefixSlot(owner=owner, store=self, index=len(self.slots), length=length)
        self.slots.append(slot)
        self.num_used = len(self.slots)
        return slot

    def remove(self, slot: PrefixSlot) -> None:
        """Drop a slot and keep the rest dense."""
        last = self.slots.pop()
        self.num_used = len(self.slots)
        if last is not slot:
            self.move(last.index, slot.index, last.length)
            last.index = slot.index
            self.slots[last.index] = last


@dataclass(slots=True, eq=False)
class PrefixSlot:
    """One stored prompt; `index` changes when the class is compacted."""

    owner: object
    store: PrefixClass
    index: int
    length: int

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store one layer's keys and values, each (kv_heads, length, head_dim)."""
        self.store.keys[layer][self.index, :, : self.length] = keys
        self.store.values[layer][self.index, :, : self.length] = values


def _class_length(length: int) -> int:
    # Steps of about an eighth of the length bound the padding, and keep the number of classes small.
    step = ALIGNMENT
    while step * 8 < length:
        step *= 2
    return round_up(length, step)
