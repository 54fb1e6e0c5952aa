from __future__ import annotations

from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from selection_builders import Key, answers, keys, rewarded

from rollmill.errors import JobError
from rollmill.tasks.selection.best import best_of_n, threshold, top_k


def by_hand(table: pa.Table, n: int, k: int) -> list[Key]:
    """Return the k best scored ones of each group's first n, one row after the other."""
    rows = sorted(table.to_pylist(), key=lambda row: (row["run_id"], row["prompt_id"], row["sample_index"]))
    chosen: list[dict[str, Any]] = []
    for _, group in groupby(rows, key=lambda row: (row["run_id"], row["prompt_id"])):
        scored = [row for row in group if row["sample_index"] < n and row["reward"] is not None]
        chosen += sorted(scored, key=lambda row: (-row["reward"], row["sample_index"]))[:k]
    return [(row["run_id"], row["prompt_id"], row["sample_index"]) for row in chosen]


@given(answers(), st.integers(1, 6), st.integers(1, 6))
def test_the_best_are_those_of_a_plain_loop(table: pa.Table, n: int, k: int) -> None:
    assert sorted(keys(best_of_n(table, n).table)) == sorted(by_hand(table, n, 1))
    assert sorted(keys(top_k(table, k).table)) == sorted(by_hand(table, 99, k))


@given(answers(), st.none() | st.floats(-1, 1), st.none() | st.floats(1, 3))
def test_a_threshold_keeps_rewards_within_its_bounds(table: pa.Table, low: float | None, high: float | None) -> None:
    found = threshold(table, low, high)
    wanted = [
        (row["run_id"], row["prompt_id"], row["sample_index"])
        for row in table.to_pylist()
        if row["reward"] is not None
        and (low is None or row["reward"] >= low)
        and (high is None or row["reward"] <= high)
    ]
    assert keys(found.table) == wanted
    assert found.dropped.get("not_scored", 0) == table["reward"].null_count


def test_of_equal_rewards_the_first_sample_is_best() -> None:
    assert keys(best_of_n(rewarded([0.5, 1.0, 1.0, None])).table) == [("run", "p0", 1)]


def test_why_answers_are_left_out_is_counted() -> None:
    found = best_of_n(rewarded([0.5, 1.0, 1.0, None], [None, None, 1.0, 1.0]), 3)
    assert dict(found.dropped) == {"beyond_best_of": 2, "not_scored": 2, "not_best": 2}


@pytest.mark.parametrize("make", [lambda table: best_of_n(table, 0), lambda table: top_k(table, 0)])
def test_fewer_than_one_is_refused(make: Any) -> None:
    with pytest.raises(JobError, match="must be at least 1, got 0"):
        make(rewarded([1.0]))
