"""Counting what goes into a training set and what does not, while it goes by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollmill.tasks.prompts.unique import UniqueIds
from rollmill.tasks.selection.groups import rewards_of
from rollmill.tasks.selection.reasons import MEANINGS
from rollmill.tasks.selection.selected import Selected, added

ANSWERS = "answers"
"""The name under which the rewards of all scored answers are counted, beside the records' own columns."""

_NUM_BINS = 10


@dataclass(slots=True)
class Rows:
    """How many rows were looked at, how many are in the records, and why the others are not."""

    rows: int = 0
    kept: int = 0
    records: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def add(self, selected: Selected) -> None:
        self.rows += selected.num_input
        self.kept += selected.num_kept
        self.records += selected.table.num_rows
        self.dropped = added(self.dropped, selected.dropped)

    def in_order(self) -> dict[str, int]:
        """Return the dropped rows by reason, in the order in which rows are looked at."""
        return {reason: self.dropped[reason] for reason in MEANINGS if reason in self.dropped}


class Rewards:
    """The rewards of some rows: 8 bytes each."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.float64]] = []

    def add(self, rewards: NDArray[np.float64]) -> None:
        self._parts.append(rewards[~np.isnan(rewards)])

    def all(self) -> NDArray[np.float64]:
        return np.concatenate([np.empty(0), *self._parts])

    def mean(self) -> float | None:
        """Return the mean, which does not depend on how the rewards came in; None when there are none."""
        rewards = np.sort(self.all())
        return float(rewards.mean()) if len(rewards) else None


class SplitTally:
    """What one split holds."""

    def __init__(self, reward_columns: tuple[str, ...]) -> None:
        self.records = 0
        self.prompts = 0
        self.rewards = {name: Rewards() for name in reward_columns}
        self._prompt_ids = UniqueIds()

    def add(self, records: pa.Table) -> None:
        self.records += records.num_rows
        for prompt_id in records["prompt_id"].unique().to_pylist():
            self.prompts += self._prompt_ids.add(prompt_id) is None
        for name, rewards in self.rewards.items():
            rewards.add(records[name].to_numpy())


class AnswerTally:
    """What was looked at: rows by run and altogether, and the rewards of all scored answers."""

    def __init__(self) -> None:
        self.total = Rows()
        self.by_version: dict[int, Rows] = {}
        self.rewards = Rewards()

    def add(self, version: int, table: pa.Table, selected: Selected) -> None:
        self.total.add(selected)
        self.by_version.setdefault(version, Rows()).add(selected)
        self.rewards.add(rewards_of(table))


def histogram(rewards: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Return ten bins of equal width over the rewards of all scored answers, and how many of each kind are in them.

    `edges` are the bins' bounds: each bin has its lower one, and the last has its upper one too. One bin is enough for
    one value, and none for no value.
    """
    everything = rewards[ANSWERS]
    if not len(everything):
        return {"edges": [], "counts": {name: [] for name in rewards}}
    low, high = float(everything.min()), float(everything.max())
    edges = np.linspace(low, high, _NUM_BINS + 1) if high > low else np.array([low, high])
    counts = {name: _counts(values, edges) for name, values in rewards.items()}
    return {"edges": edges.tolist(), "counts": counts}


def _counts(values: NDArray[np.float64], edges: NDArray[np.float64]) -> list[int]:
    last = len(edges) - 2
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, last)
    counts: list[int] = np.bincount(bins, minlength=last + 1).tolist()
    return counts
