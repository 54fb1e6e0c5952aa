"""Lists of different lengths, and how they are padded: one copy a list, no loop over their elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Ragged:
    """List i is `values[offsets[i] : offsets[i + 1]]`."""

    offsets: NDArray[np.int64]
    values: NDArray[Any]

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Ragged:
        """Return a column of lists, which holds nulls nowhere; without a copy when it is one chunk."""
        lists = column.combine_chunks()
        offsets = lists.offsets.to_numpy().astype(np.int64)
        return cls(offsets, lists.values.to_numpy())

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """Return the lists of the first part, then those of the second, and so on."""
        values = [part.values[part.offsets[0] : part.offsets[-1]] for part in parts]
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        return cls(np.concatenate([[0], np.cumsum(lengths)]), np.concatenate(values))

    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


Choice = tuple[Ragged, NDArray[np.int64]]
"""Some of the lists, by their numbers."""


def padded(
    choices: Sequence[Choice], dtype: type[np.generic], fill: float, side: str
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return ([lists, longest] values, bool mask) of the chosen lists, one choice after the other.

    Raises ValueError when `side` is neither left nor right.
    """
    if side not in ("left", "right"):
        raise ValueError(f"padding side must be left or right, got {side}")
    lengths = np.concatenate([lists.lengths()[chosen] for lists, chosen in choices] or [np.zeros(0, np.int64)])
    longest = int(lengths.max(initial=0))
    values = np.empty((len(lengths), longest), dtype)
    row = 0
    for lists, chosen in choices:
        starts, stops = lists.offsets[chosen].tolist(), lists.offsets[chosen + 1].tolist()
        for start, stop in zip(starts, stops, strict=True):
            num_pads = longest - (stop - start)
            if side == "left":
                values[row, :num_pads] = fill
                values[row, num_pads:] = lists.values[start:stop]
            else:
                values[row, : stop - start] = lists.values[start:stop]
                values[row, stop - start :] = fill
            row += 1
    places = np.arange(longest)
    mask = places >= longest - lengths[:, None] if side == "left" else places < lengths[:, None]
    return values, mask
