from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from selection_builders import answer, answers, keys, rewarded
from store_builders import failed_row, table_of

from rollmill.errors import JobError
from rollmill.tasks.selection.group_filters import pass_rate_between, varied
from rollmill.tasks.selection.labels import kto
from rollmill.tasks.selection.pass_rate import pass_rates
from rollmill.tasks.selection.row_filters import (
    answered,
    complete,
    matching,
    not_matching,
    scored,
    within_length,
)


def rate(rewards: list[float | None]) -> float | None:
    """Return the share of a group's scored answers that pass."""
    there = [reward for reward in rewards if reward is not None]
    return sum(reward >= 1 for reward in there) / len(there) if there else None


GROUPS = st.lists(st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=4), max_size=4)


@given(GROUPS, st.none() | st.floats(0, 0.6), st.none() | st.floats(0.6, 1))
def test_prompts_outside_the_pass_rate_go_with_all_of_their_answers(
    groups: list[list[float | None]], low: float | None, high: float | None
) -> None:
    found = pass_rate_between(rewarded(*groups), low, high)
    wanted = [
        ("run", f"p{prompt}", sample)
        for prompt, group in enumerate(groups)
        for sample, reward in enumerate(group)
        if reward is not None and (low or 0) <= (rate(group) or 0) <= (1 if high is None else high)
    ]
    assert keys(found.table) == wanted


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ((0.8, 0.2), "max_pass_rate must be at least min_pass_rate, got 0.2 < 0.8"),
        ((-0.1, None), "min_pass_rate must be from 0 to 1, got -0.1"),
        ((None, 1.1), "max_pass_rate must be from 0 to 1, got 1.1"),
    ],
)
def test_pass_rates_that_make_no_sense_are_refused(bounds: tuple[float | None, float | None], reason: str) -> None:
    with pytest.raises(JobError, match=reason):
        pass_rate_between(rewarded([1.0]), *bounds)


def test_prompts_whose_rewards_do_not_vary_go() -> None:
    table = rewarded([1.0, 1.0, None], [0.0, 0.05], [0.0, 1.0], [None, None])
    assert {key[1] for key in keys(varied(table).table)} == {"p1", "p2"}
    found = varied(table, 0.1)
    assert {key[1] for key in keys(found.table)} == {"p2"}
    assert dict(found.dropped) == {"not_scored": 3, "zero_variance": 4}
    with pytest.raises(JobError, match="zero_variance must be at least 0"):
        varied(table, -1.0)


@given(GROUPS.filter(bool), st.integers(1, 5))
def test_the_table_of_pass_rates_says_what_counting_says(groups: list[list[float | None]], k: int) -> None:
    table = pass_rates(rewarded(*groups), (1, k))
    assert table["prompt_id"].to_pylist() == [f"p{prompt}" for prompt in range(len(groups))]
    assert table["num_answers"].to_pylist() == [len(group) for group in groups]
    assert table["num_scored"].to_pylist() == [sum(reward is not None for reward in group) for group in groups]
    assert table["pass@1"].to_pylist() == [pytest.approx(rate(group)) for group in groups]
    enough = [sum(reward is not None for reward in group) >= k for group in groups]
    assert [value is not None for value in table[f"pass@{k}"].to_pylist()] == enough


@given(GROUPS.filter(bool), st.integers(1, 4))
def test_pass_at_k_is_the_share_of_all_choices_of_k_answers_of_which_one_passes(
    groups: list[list[float | None]], k: int
) -> None:
    from itertools import combinations

    found = pass_rates(rewarded(*groups), (k,))[f"pass@{k}"].to_pylist()
    for value, group in zip(found, groups, strict=True):
        choices = list(combinations([reward >= 1 for reward in group if reward is not None], k))
        assert value == (pytest.approx(sum(map(any, choices)) / len(choices)) if choices else None)


def test_pass_at_nothing_is_refused() -> None:
    with pytest.raises(JobError, match="k of pass@k must be at least 1, got 0"):
        pass_rates(rewarded([1.0]), (1, 0))


@given(answers(), st.integers(1, 3), st.integers(3, 6))
def test_filters_of_one_answer_keep_what_they_say(table: pa.Table, low: int, high: int) -> None:
    rows = table.to_pylist()
    assert [row["finish_reason"] != "error" for row in rows].count(True) == answered(table).num_kept
    assert all(row["reward"] is not None for row in scored(table).table.to_pylist())
    assert "length" not in complete(table).table["finish_reason"].to_pylist()
    lengths = [len(row["response_token_ids"]) for row in rows]
    assert within_length(table, low, high).num_kept == sum(low <= length <= high for length in lengths)
    assert within_length(table).num_kept == len(rows)
    holds = matching(table, "f(our|ive)$").num_kept
    assert holds == sum(row["response_text"].endswith(("four", "five")) for row in rows)
    assert not_matching(table, "f(our|ive)$").num_kept == len(rows) - holds


def test_labels_are_true_above_one_bound_and_false_below_the_other() -> None:
    found = kto(rewarded([0.0, 0.5, 0.75, 1.0, None]), desirable=0.75, undesirable=0.5)
    assert list(zip(found.table["reward"].to_pylist(), found.table["label"].to_pylist(), strict=True)) == [
        (0.0, False),
        (0.75, True),
        (1.0, True),
    ]
    assert dict(found.dropped) == {"not_scored": 1, "neither": 1}


def test_a_bad_pattern_is_refused_in_one_line() -> None:
    with pytest.raises(JobError, match="is not a regular expression") as refused:
        matching(table_of([answer(0, 0), failed_row(1, 0)]), "(")
    assert "\n" not in str(refused.value)
