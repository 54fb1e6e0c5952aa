"""Bins that lose nothing and count nothing twice."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.tasks.report.histogram import MAX_BINS, Histogram, histogram

NUMBERS = st.floats(allow_infinity=False, allow_nan=True) | st.integers(-2000, 2000).map(float)


def in_bin(value: float, found: Histogram, place: int) -> bool:
    if found.values is not None:
        return value == found.values[place]
    low, high = found.edges[place : place + 2]
    return low <= value < high or (place == found.num_bins - 1 and low <= value <= high)


@given(st.lists(st.lists(NUMBERS, max_size=60), min_size=1, max_size=2))
def test_every_value_but_nan_is_in_exactly_one_bin(series: list[list[float]]) -> None:
    found = histogram([np.array(values, dtype=np.float64) for values in series])
    known = [[value for value in values if not math.isnan(value)] for values in series]
    assert [sum(counts) for counts in found.counts] == list(map(len, known))
    assert found.num_bins <= MAX_BINS
    if found.values is not None:
        for counts, values in zip(found.counts, known, strict=True):
            assert list(counts) == [sum(value == own for value in values) for own in found.values]


@given(st.lists(st.integers(0, 5000), min_size=30, max_size=80, unique=True))
def test_whole_numbers_fall_into_bins_of_one_whole_width(lengths: list[int]) -> None:
    found = histogram([np.array(lengths, dtype=np.float64)])
    widths = np.diff(found.edges)
    assert len(set(widths.tolist())) == 1
    assert widths[0] == round(widths[0])
    for place, count in enumerate(found.counts[0]):
        assert count == sum(in_bin(length, found, place) for length in lengths)


def test_a_null_reward_is_in_no_bin() -> None:
    found = histogram([np.array([0.0, math.nan, 1.0, math.nan, 1.0])])
    assert found == Histogram(((1, 2),), values=(0.0, 1.0))


def test_two_series_share_their_bins() -> None:
    found = histogram([np.array([0.0, 0.5]), np.array([0.5, 1.0, 1.0])])
    assert found == Histogram(((1, 1, 0), (0, 1, 2)), values=(0.0, 0.5, 1.0))


@pytest.mark.parametrize("values", [[], [math.nan]])
def test_nothing_has_no_bins(values: list[float]) -> None:
    assert histogram([np.array(values, dtype=np.float64)]).num_bins == 0
