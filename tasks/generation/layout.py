"""Arranging one step: which tokens go in, and who attends to what."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rollmill.tasks.generation.attention import PrefillSegment, PrefixLanes, StepLayout
from rollmill.tasks.generation.kv_cache import (
    ALIGNMENT,
    KVShape,
    PrefixClass,
    PrefixPool,
    PrefixSlot,
    SuffixCache,
    round_up,
)
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
            suffix_positions=counts - 1,
            suffix_length=length,
            suffix_mask=_length_mask(counts, length),
            prefixes=self._lanes,
            row_to_lane=self._row_to_lane,
            segments=segments,
        )

    def _arrange_prefixes(self, active: ActiveRows, num_rows: int) -> None:
        rows_of: dict[PrefixSlot, list[int]] = {}
        lengths = []
        for index, row in enumerate(active.rows[:num_rows]):
            assert row.group.slot is not None
            rows_of.setdefault(row.group.slot, []).append(index)
            lengths.append(row.group.slot.length)
        self._prefix_lengths = np.array(lengths, dtype=np.int64)
        self._lanes, row_to_lane, offset = [], [0] * num_rows, 0
        for store in self._prefixes.classes.values():
            lane_rows = [rows_of.get(slot, []) for slot in store.slots]
            if not any(lane_rows):
                continue
            num_lanes = max(self._min_lanes, *map(len, lane_rows))
            for place, rows in enumerate(lane_rows):
                for lane, index in enumerate(rows):
                    row_to_lane[index] = offset + place * num_lanes + lane
            offset += num_lanes * len(lane_rows)
            self._lanes.append(self._prefix_lanes(store, lane_rows, num_lanes))
        self._row_to_lane = torch.tensor(row_to_lane, dtype=torch.int64, device=self._device)

    def _prefix_lanes(self, store: PrefixClass, lane_rows: list[list[int]], num_lanes: int) -> PrefixLanes:
        lengths = torch.tensor([slot.length for slot in store.slots], device=self._device)
        length = round_up(max(slot.length for slot in store.slots), ALIGNMENT)
        filled = [row for rows in lane_rows for row in rows + (rows[:1] or [0]) * (num_lanes - len(rows))]
        return PrefixLanes(
            store=store,
            length=length,
            rows=torch.tensor(filled, dtype=torch.int64, device=self._device),
            num_lanes=num_lanes,
            mask=_length_mask(lengths, length),
        )


def _length_mask(lengths: Tensor, padded: int) -> Tensor:
    """Return (n, 1, 1, padded) float32: 0 before each length, minus infinity from there on."""
    beyond = torch.arange(padded, device=lengths.device)[None] >= lengths[:, None]
    return torch.zeros(beyond.shape, device=lengths.device).masked_fill_(beyond, float("-inf"))[:, None, None]
