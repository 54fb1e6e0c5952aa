"""Counts of values in bins that several series share, so that what is drawn side by side can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_BINS = 24
_MAX_SINGLE_VALUES = 12

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values of each series are in each bin.

    With few different values, `values` has them and each is a bin of its own; otherwise it is None, and bin i reaches
    from `edges[i]` to `edges[i + 1]`, the last one including its end. `counts` is (series, bin).
    """

    counts: tuple[tuple[int, ...], ...]
    values: tuple[float, ...] | None = None
    edges: tuple[float, ...] = ()

    @property
    def num_bins(self) -> int:
        return len(self.counts[0])

    def to_json(self) -> dict[str, Any]:
        """Return the bins and counts as JSON values."""
        bins = {"edges": list(self.edges)} if self.values is None else {"values": list(self.values)}
        return {**bins, "counts": [list(counts) for counts in self.counts]}


def histogram(series: Sequence[Numbers], max_bins: int = MAX_BINS) -> Histogram:
    """Count the values of each series, without NaN, in bins that cover all of them; no value at all has no bins."""
    known = [values[~np.isnan(values)] for values in series]
    everything = np.concatenate(known)
    different = np.unique(everything)
    if len(different) <= _MAX_SINGLE_VALUES:
        counts = [np.bincount(np.searchsorted(different, values), minlength=len(different)) for values in known]
        return Histogram(_whole(counts), values=tuple(different.tolist()))
    edges = _edges(different, max_bins)
    inner = edges[1:-1]
    counts = [np.bincount(np.searchsorted(inner, values, side="right"), minlength=len(edges) - 1) for values in known]
    return Histogram(_whole(counts), edges=tuple(edges.tolist()))


def _edges(different: Numbers, max_bins: int) -> Numbers:
    """Return the limits of equal bins; whole numbers get bins of a whole width, so that none is favoured."""
    lowest, highest = different[0], different[-1]
    if np.array_equal(different, np.round(different)) and highest - lowest < 2**52:
        width = max(1.0, np.ceil((highest - lowest + 1) / max_bins))
        return np.asarray(np.arange(lowest, highest + width + 0.5, width)[: max_bins + 1], dtype=np.float64)
    share = np.linspace(0.0, 1.0, max_bins + 1)
    return np.asarray(lowest * (1.0 - share) + highest * share, dtype=np.float64)


def _whole(counts: Sequence[NDArray[np.int64]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row.tolist()) for row in counts)
