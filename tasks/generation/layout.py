"""Arranging one step: which tokens go in, and who attends to what."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rollmill.tasks.generation.attention import PrefillSegment, PrefixLanes, PrefixRows, ProductLayout, StepLayout
from rollmill.tasks.generation.kv_cache import (
    ALIGNMENT,
    KVShape,
    PrefixClass,
    PrefixPool,
    PrefixSlot,
    SuffixCache,
    round_up,
)
from rollmill.tasks.generation.row_threads import has_kernels
from rollmill.tasks.generation.rows import ActiveRows, GroupState

_ROWS_PER_THREAD = 4
_VECTOR = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """What makes a row's float32 results the same, bit for bit, whatever else is in the batch.

    A matrix product whose threads have fewer than four rows each takes other kernels, whose rounding differs: hence
    `min_rows`. An elementwise function rounds differently in vectors and in the rest that fills no vector: hence steps
    whose number of tokens is a multiple of `token_step`, so that nothing is left over.
    """

    min_rows: int
    token_step: int

    @classmethod
    def of(cls, shape: KVShape) -> Padding:
        """Return the padding that this machine's threads and this model's heads call for."""
        sizes = {head_dim for _, head_dim in shape.layers}
        step = max(_VECTOR // math.gcd(size, _VECTOR) for size in sizes)
        threads = torch.get_num_threads() if shape.device.type == "cpu" else 1
        return cls(min_rows=round_up(max(16, _ROWS_PER_THREAD * threads), step), token_step=step)

    def padded(self, rows: int) -> int:
        """Return how many rows to compute for `rows` that are wanted."""
        return max(self.min_rows, round_up(rows, self.token_step))


class LayoutBuilder:
    """Builds the layout of each step; what depends only on which rows are active is kept until that changes."""

    def __init__(self, suffix: SuffixCache, prefixes: PrefixPool, shape: KVShape) -> None:
        device = shape.device
        self.padding = Padding.of(shape)
        self._min_lanes = -(-_ROWS_PER_THREAD // shape.queries_per_key)
        self._suffix = suffix
        self._prefixes = prefixes
        self._device = device
        self._uses_products = not has_kernels(shape.empty(0, 0, 0))
        self._prefix_rows: list[PrefixRows] = []
        self._lanes: list[PrefixLanes] = []
        self._row_to_lane = torch.zeros(0, dtype=torch.int64, device=device)
        self._prefix_lengths = np.zeros(0, dtype=np.int64)
        self._stale = True

    def rows_changed(self) -> None:
        """Say that rows or stored prompts came, went or moved."""
        self._stale = True

    def build(
        self, active: ActiveRows, num_rows: int, prefilled: list[GroupState]
    ) -> tuple[StepLayout, Tensor, Tensor]:
        """Return the layout of a step over the first `num_rows` rows and new prompts, its ids and its positions.

        Both are (1, tokens) int64.
        """
        if self._stale:
            self._arrange_prefixes(active, num_rows)
            self._stale = False
        ids, positions = [active.last_tokens(num_rows)], [self._row_positions(active, num_rows)]
        segments, start = [], num_rows
        for group in prefilled:
            assert group.slot is not None
            segments.append(PrefillSegment(start=start, slot=group.slot))
            ids.append(torch.tensor(group.request.input_ids, device=self._device))
            positions.append(torch.arange(group.slot.length, device=self._device))
            start += group.slot.length
        num_tokens = self.padding.padded(start)
        ids.append(torch.zeros(num_tokens - start, dtype=torch.int64, device=self._device))
        positions.append(ids[-1])
        layout = self._layout(active, num_rows, num_tokens, segments)
        return layout, torch.cat(ids)[None], torch.cat(positions)[None]

    def _row_positions(self, active: ActiveRows, num_rows: int) -> Tensor:
        return torch.from_numpy(self._prefix_lengths + active.num_tokens[:num_rows] - 1).to(self._device)

    def _layout(self, active: ActiveRows, num_rows: int, num_tokens: int, segments: list[PrefillSegment]) -> StepLayout:
        counts = torch.from_numpy(active.num_tokens[:num_rows]).to(self._device)
        longest = int(active.num_tokens[:num_rows].max()) if num_rows else 0
        length = round_up(longest, ALIGNMENT)
        if num_rows:
            self._suffix.reserve_rows(num_rows, length)
            self._suffix.num_used = num_rows
        return StepLayout(
            num_rows=num_rows,
            num_tokens=num_tokens,
            suffix=self._suffix,
            suffix_lengths=counts,
            prefixes=self._prefix_rows,
            segments=segments,
            products=self._product_layout(counts, length) if self._uses_products else None,
        )

    def _product_layout(self, counts: Tensor, length: int) -> ProductLayout:
        return ProductLayout(
            suffix_length=length,
            suffix_mask=_length_mask(counts, length),
            lanes=self._lanes,
            row_to_lane=self._row_to_lane,
        )

    def _arrange_prefixes(self, active: ActiveRows, num_rows: int) -> None:
        rows_of: dict[PrefixSlot, list[int]] = {}
        lengths = []
        for index, row in enumerate(active.rows[:num_rows]):
            assert row.group.slot is not None
            rows_of.setdefault(row.group.slot, []).append(index)
            lengths.append(row.group.slot.length)
        self._prefix_lengths = np.array(lengths, dtype=np.int64)
        in_use = [
            (store, rows)
            for store in self._prefixes.classes.values()
            if any(rows := [rows_of.get(slot, []) for slot in store.slots])
        ]
        if self._uses_products:
            self._arrange_lanes(in_use, num_rows)
        else:
            self._prefix_rows = [self._rows_of(store, rows) for store, rows in in_use]

    def _rows_of(self, store: PrefixClass, rows_by_prompt: list[list[int]]) -> PrefixRows:
        return PrefixRows(
            store=store,
            rows=self._numbers([row for rows in rows_by_prompt for row in rows]),
            prompts=self._numbers([prompt for prompt, rows in enumerate(rows_by_prompt) for _ in rows]),
            lengths=self._numbers([slot.length for slot in store.slots]),
        )

    def _arrange_lanes(self, in_use: list[tuple[PrefixClass, list[list[int]]]], num_rows: int) -> None:
        self._lanes, row_to_lane, offset = [], [0] * num_rows, 0
        for store, rows_by_prompt in in_use:
            num_lanes = max(self._min_lanes, *map(len, rows_by_prompt))
            for place, rows in enumerate(rows_by_prompt):
                for lane, index in enumerate(rows):
                    row_to_lane[index] = offset + place * num_lanes + lane
            offset += num_lanes * len(rows_by_prompt)
            self._lanes.append(self._lanes_of(store, rows_by_prompt, num_lanes))
        self._row_to_lane = self._numbers(row_to_lane)

    def _lanes_of(self, store: PrefixClass, rows_by_prompt: list[list[int]], num_lanes: int) -> PrefixLanes:
        length = round_up(max(slot.length for slot in store.slots), ALIGNMENT)
        filled = [row for rows in rows_by_prompt for row in rows + (rows[:1] or [0]) * (num_lanes - len(rows))]
        return PrefixLanes(
            store=store,
            length=length,
            rows=self._numbers(filled),
            num_lanes=num_lanes,
            mask=_length_mask(self._numbers([slot.length for slot in store.slots]), length),
        )

    def _numbers(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)


def _length_mask(lengths: Tensor, padded: int) -> Tensor:
    """Return (n, 1, 1, padded) float32: 0 before each length, minus infinity from there on."""
    beyond = torch.arange(padded, device=lengths.device)[None] >= lengths[:, None]
    return torch.zeros(beyond.shape, device=lengths.device).masked_fill_(beyond, float("-inf"))[:, None, None]
