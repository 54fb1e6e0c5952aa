"""Whole selections: nothing is lost uncounted, and the order of rows does not matter."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from selection_builders import answer, answers, canonical, keys, rewarded, shuffled
from store_builders import failed_row, table_of

from rollmill.errors import JobError
from rollmill.tasks.selection.config import SelectionConfig
from rollmill.tasks.selection.conversations import Conversation
from rollmill.tasks.selection.pipeline import Selection
from rollmill.tasks.selection.reasons import MEANINGS
from rollmill.tasks.selection.selected import Selected

FORMATS = ["sft", "dpo", "kto", "table"]


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


@st.composite
def configs(draw: st.DrawFn) -> SelectionConfig:
    """Draw any filters, with bounds that are in order."""
    low, high = sorted(draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=2)))
    return SelectionConfig(
        best_of=draw(optional(st.integers(1, 5))),
        min_pass_rate=draw(optional(st.just(low))),
        max_pass_rate=draw(optional(st.just(high))),
        zero_variance=draw(optional(st.sampled_from([0.0, 0.1]))),
        keep_truncated=draw(st.booleans()),
        min_tokens=draw(optional(st.just(2))),
        max_tokens=draw(optional(st.just(4))),
        match=draw(optional(st.just("it|no"))),
        no_match=draw(optional(st.just("five"))),
        where=draw(optional(st.just('prompt_id != "p1"'))),
        min_reward=draw(optional(st.just(low))),
        max_reward=draw(optional(st.just(high + 1))),
        keep_duplicates=draw(st.booleans()),
        near_duplicates=draw(optional(st.just(0.5))),
        duplicate_scope=draw(st.sampled_from(["prompt", "all"])),
        pairs=draw(st.sampled_from(["max_min", "max_random", "adjacent"])),
        min_margin=draw(st.sampled_from([0.0, 0.1, 0.5])),
        max_length_ratio=draw(optional(st.just(1.5))),
        undesirable=draw(optional(st.just(0.5))),
    )


@given(answers(), configs(), st.sampled_from(FORMATS), st.data())
def test_every_row_is_kept_or_counted_once_and_the_order_of_rows_does_not_matter(
    table: pa.Table, config: SelectionConfig, training_format: Any, data: st.DataObject
) -> None:
    conversations = {"p2": None, "p1": Conversation([{"role": "user", "content": "one"}])}
    found = Selection(config, training_format).select(table, conversations)
    assert found.num_input == table.num_rows
    assert found.num_kept + sum(found.dropped.values()) == table.num_rows
    assert set(found.dropped) <= set(MEANINGS)
    if training_format != "dpo":
        assert found.table.num_rows == found.num_kept
    again = Selection(config, training_format).select(shuffled(data, table), conversations)
    assert canonical(again.table) == canonical(found.table)
    assert again.dropped == found.dropped


@given(answers(), configs())
def test_what_is_kept_satisfies_every_filter(table: pa.Table, config: SelectionConfig) -> None:
    found = Selection(config, "table").select(table, {})
    for row in found.table.to_pylist():
        assert row["finish_reason"] == "stop" or config.keep_truncated
        assert row["reward"] is not None
        assert row["reward"] >= (config.min_reward or 0)
        assert row["sample_index"] < (config.best_of or 5)
        assert len(row["response_token_ids"]) <= (config.max_tokens or 6)
        assert "five" not in row["response_text"] or config.no_match is None
        assert row["prompt_id"] != "p1" or config.where is None


def test_a_row_counts_under_the_first_reason_that_applies() -> None:
    rows = [
        answer(0, 0, reward=1.0),
        answer(0, 1, reward=0.0, finish_reason="length"),
        answer(0, 2, reward=None, finish_reason="length"),
        failed_row(1, 0),
        answer(2, 0, reward=0.5, tokens=9),
        answer(2, 1, reward=0.5, tokens=1, response_text="twice"),
        answer(2, 2, reward=0.5, tokens=1, response_text="twice"),
    ]
    found = Selection(SelectionConfig(max_tokens=8), "sft").select(table_of(rows), {})
    assert keys(found.table) == [("run", "p0", 0), ("run", "p2", 1)]
    assert dict(found.dropped) == {"not_answered": 1, "not_scored": 1, "truncated": 1, "too_long": 1, "duplicate": 1}


def test_sft_takes_the_best_answer_and_table_all_unless_told_otherwise() -> None:
    table = rewarded([0.0, 1.0, 0.5], [0.2, 0.1, 0.3])
    assert len(keys(Selection(SelectionConfig(), "sft").select(table, {}).table)) == 2
    assert len(keys(Selection(SelectionConfig(top=2), "sft").select(table, {}).table)) == 4
    assert len(keys(Selection(SelectionConfig(), "table").select(table, {}).table)) == 6


@pytest.mark.parametrize("training_format", ["dpo", "kto"])
def test_formats_that_need_worse_answers_refuse_top(training_format: Any) -> None:
    with pytest.raises(JobError, match=f"top is for sft and table; {training_format} needs the worse answers too"):
        Selection(SelectionConfig(top=1), training_format)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"min_pass_rate": 0.8, "max_pass_rate": 0.2}, "max_pass_rate must be at least min_pass_rate, got 0.2 < 0.8"),
        ({"min_tokens": 9, "max_tokens": 3}, "max_tokens must be at least min_tokens, got 3 < 9"),
        ({"min_reward": 1, "max_reward": 0}, "max_reward must be at least min_reward, got 0 < 1"),
        ({"desirable": 0.5, "undesirable": 0.6}, "undesirable must be at most desirable, got 0.6 > 0.5"),
        ({"match": "(?<=a)b"}, "is not a regular expression"),
        ({"where": "__import__('os')"}, "is not understood"),
        ({"best_of": 0}, "greater than or equal to 1"),
        ({"near_duplicates": 1.5}, "less than or equal to 1"),
        ({"max_length_ratio": 0.5}, "greater than or equal to 1"),
        ({"colour": 1}, "Extra inputs are not permitted"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError) as refused:
        SelectionConfig(**options)
    assert reason in str(refused.value)


def test_a_selection_that_does_not_add_up_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="2 rows kept"):
        Selected(table=rewarded([1.0, 2.0]), num_input=4, num_kept=2, dropped={"tie": 1})
