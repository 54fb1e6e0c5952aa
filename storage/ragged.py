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
    """Lists as pieces of a few arrays: list i is `arrays[where[i]][starts[i] : stops[i]]`."""

    arrays: tuple[NDArray[Any], ...]
    where: NDArray[np.intp]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Ragged:
        """Return a column of lists, which holds nulls nowhere, without copying their elements."""
        parts = [_of_chunk(chunk) for chunk in column.chunks]
        return cls.joined(parts) if parts else cls((), *(np.zeros(0, np.int64) for _ in range(3)))

    @classmethod
    def of_texts(cls, column: pa.ChunkedArray) -> Ragged:
        """Return a column of strings, which holds nulls nowhere, as lists of UTF-8 bytes, without copying them."""
        parts = [_of_text_chunk(chunk) for chunk in column.chunks]
        return cls.joined(parts) if parts else cls((), *(np.zeros(0, np.int64) for _ in range(3)))

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """Return the lists of the first part, then those of the second, and so on, without copying their elements."""
        firsts = np.cumsum([0, *(len(part.arrays) for part in parts)])
        return cls(
            tuple(array for part in parts for array in part.arrays),
            np.concatenate([part.where + first for part, first in zip(parts, firsts[:-1], strict=True)]),
            np.concatenate([part.starts for part in parts]),
            np.concatenate([part.stops for part in parts]),
        )

    @classmethod
    def of_nested(cls, column: pa.ChunkedArray) -> tuple[Ragged, Ragged]:
        """Return a column of lists of lists as two: the lengths of each row's inner lists, and their elements."""
        parts = [_of_nested_chunk(chunk) for chunk in column.chunks]
        return cls.joined([counts for counts, _ in parts]), cls.joined([elements for _, elements in parts])

    def values_of(self, number: int) -> NDArray[Any]:
        """Return one of the lists."""
        values: NDArray[Any] = self.arrays[self.where[number]][self.starts[number] : self.stops[number]]
        return values

    def lengths(self) -> NDArray[np.int64]:
        return self.stops - self.starts

    def texts(self, chosen: NDArray[np.int64]) -> list[str]:
        """Return the chosen ones of `of_texts` as strings."""
        views = [array.data for array in self.arrays]
        bounds = zip(*(part[chosen].tolist() for part in (self.where, self.starts, self.stops)), strict=True)
        return [str(views[where][start:stop], "utf-8") for where, start, stop in bounds]


def numpy_of(array: pa.Array) -> NDArray[Any]:
    """Return numbers without nulls, not copied.

    `to_numpy` would give the same, but imports pandas where that is installed: 45 MB in every process that reads.
    """
    numbers: NDArray[Any] = np.from_dlpack(array)
    return numbers


def _of_chunk(lists: pa.ListArray) -> Ragged:
    offsets = numpy_of(lists.offsets).astype(np.int64)
    return Ragged((numpy_of(lists.values),), np.zeros(len(lists), np.intp), offsets[:-1], offsets[1:])


def _of_text_chunk(texts: pa.StringArray) -> Ragged:
    _, offsets, data = texts.buffers()
    count = texts.offset + len(texts) + 1
    bounds = np.frombuffer(offsets, np.int32, count)[texts.offset :] if len(texts) else np.zeros(1, np.int32)
    characters = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    ends = bounds.astype(np.int64)
    return Ragged((characters,), np.zeros(len(texts), np.intp), ends[:-1], ends[1:])


def _of_nested_chunk(lists: pa.ListArray) -> tuple[Ragged, Ragged]:
    outer, inner = numpy_of(lists.offsets).astype(np.int64), lists.values
    bounds = numpy_of(inner.offsets).astype(np.int64)
    where = np.zeros(len(lists), np.intp)
    counts = Ragged((np.diff(bounds),), where, outer[:-1], outer[1:])
    return counts, Ragged((numpy_of(inner.values),), where, bounds[outer[:-1]], bounds[outer[1:]])


Choice = tuple[Ragged, NDArray[np.int64]]
"""Some of the lists, by their numbers."""


def padded(choices: Sequence[Choice], dtype: type[np.generic], fill: float, side: str) -> NDArray[Any]:
    """Return [lists, longest] values of the chosen lists, one choice after the other, filled up on the other side.

    Raises ValueError when `side` is neither left nor right.
    """
    _check_side(side)
    lengths = _lengths(choices)
    longest = int(lengths.max(initial=0))
    size = len(lengths) * longest
    values = np.full(size, fill, dtype) if fill else np.zeros(size, dtype)
    ends = np.arange(1, len(lengths) + 1) * longest
    places = iter((ends - (longest if side == "right" else lengths)).tolist())
    for lists, chosen in choices:
        bounds = zip(*(part[chosen].tolist() for part in (lists.where, lists.starts, lists.stops)), strict=True)
        for (where, start, stop), place in zip(bounds, places, strict=False):  # `places` goes on with the next choice
            values[place : place + stop - start] = lists.arrays[where][start:stop]
    return values.reshape(len(lengths), longest)


def padded_mask(choices: Sequence[Choice], side: str) -> NDArray[np.bool_]:
    """Return [lists, longest], True where `padded` puts elements and not what it fills up with."""
    _check_side(side)
    lengths = _lengths(choices).astype(np.int32)  # narrow numbers are compared twice as fast
    longest = lengths.max(initial=0)
    places = np.arange(longest, dtype=np.int32)
    mask: NDArray[np.bool_] = places < lengths[:, None] if side == "right" else places >= longest - lengths[:, None]
    return mask


def _lengths(choices: Sequence[Choice]) -> NDArray[np.int64]:
    each = [lists.stops[chosen] - lists.starts[chosen] for lists, chosen in choices]
    return np.concatenate([np.zeros(0, np.int64), *each])


def _check_side(side: str) -> None:
    if side not in ("left", "right"):
        raise ValueError(f"padding side must be left or right, got {side}")
