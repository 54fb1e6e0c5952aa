"""The figures of a run, against counting by hand."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_builders import failed_row, row_of, table_of

from rollmill.tasks.figures import pass_at_k, reward_stats, total


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_answers_that_hold_one_that_passes(
    passes: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(passes)))
    choices = list(itertools.combinations(passes, k))
    expected = sum(map(any, choices)) / len(choices)
    assert pass_at_k(len(passes), sum(passes), k) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1)])
def test_pass_at_k_refuses_what_cannot_be_estimated(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="cannot be estimated"):
        pass_at_k(n, c, k)


def rows_with(*groups: list[float | None]) -> pa.Table:
    """Return groups of rows with these rewards; None stands for a reward that could not be computed."""
    rows: list[dict[str, Any]] = []
    for prompt, rewards in enumerate(groups):
        for sample, reward in enumerate(rewards):
            status = "failed" if reward is None else "ok"
            rows.append(row_of(prompt, sample, reward=reward, reward_status=status))
    return table_of(rows)


def test_shards_added_up_are_the_figures_of_all_rows_together() -> None:
    groups: list[list[float | None]] = [[0.0, 1.0, 1.5], [0.2, None, 0.9], [None, None, None], [1.0, 1.0, 1.0]]
    apart = total([reward_stats(rows_with(*groups[:1])), reward_stats(rows_with(*groups[1:]))])
    together = total([reward_stats(rows_with(*groups))])
    assert (
        (apart.rows, apart.scored, apart.unscored) == (together.rows, together.scored, together.unscored) == (12, 8, 4)
    )
    assert apart.mean_reward == pytest.approx((2.5 + 1.1 + 3.0) / 8)
    assert dict(apart.passes) == dict(together.passes) == {(3, 2): 1, (2, 0): 1, (0, 0): 1, (3, 3): 1}
    assert apart.pass_at(1) == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert apart.pass_at(3) == 1.0
    assert apart.pass_at(4) is None


def test_rows_that_failed_or_were_cut_are_counted_and_do_not_pass() -> None:
    table = table_of([row_of(0, 0, reward=1.0), row_of(0, 1, reward=1.0), failed_row(0, 2)])
    figures = total([reward_stats(table)])
    assert (figures.ok, figures.truncated, figures.failed, figures.scored, figures.unscored) == (1, 1, 1, 2, 0)
    assert dict(figures.passes) == {(2, 2): 1}


def test_a_run_without_a_scored_row_has_no_mean() -> None:
    figures = total([reward_stats(rows_with([None, None, None]))])
    assert (figures.mean_reward, figures.pass_at(1)) == (None, None)
