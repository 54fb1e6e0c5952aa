"""Conditions on rows: what they choose, and that nothing else is understood."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.errors import JobError
from rollmill.storage.schema import RESPONSE_SCHEMA
from rollmill.tasks.row_filter import RowFilter

ROWS: list[dict[str, Any]] = [
    {"prompt_id": "a", "sample_index": 0, "reward": 0.0, "reward_status": "ok", "response_text": "one"},
    {"prompt_id": "a", "sample_index": 1, "reward": None, "reward_status": "failed", "response_text": "two"},
    {"prompt_id": "b", "sample_index": 2, "reward": -1.5, "reward_status": "ok", "response_text": "x = 'three'"},
]


def table(rows: list[dict[str, Any]]) -> pa.Table:
    blank = {
        "run_id": "r",
        "policy_version": 0,
        "seed": 1,
        "prompt_text": "",
        "finish_reason": "stop",
        "metadata": "{}",
    }
    lists: dict[str, list[Any]] = {"prompt_token_ids": [], "response_token_ids": [], "logprobs": []}
    return pa.Table.from_pylist([{**blank, **lists, **row} for row in rows], schema=RESPONSE_SCHEMA)


@pytest.mark.parametrize(
    ("condition", "chosen"),
    [
        ("reward < 0.5", [0, 2]),
        ("-2 <= reward < 0", [2]),
        ("reward is None", [1]),
        ("reward is not None and prompt_id != 'b'", [0]),
        ("reward_status == 'failed' or sample_index > 1", [1, 2]),
        ("not (prompt_id == 'a')", [2]),
        ("not reward < -1", [0]),
        ("sample_index in [0, 2]", [0, 2]),
        ("prompt_id not in ['b']", [0, 1]),
        ("\"'three'\" in response_text", [2]),
        ("reward == -1.5", [2]),
        ("prompt_id == 'zzz'", []),
    ],
)
def test_a_condition_chooses_rows(condition: str, chosen: list[int]) -> None:
    assert [place for place, holds in enumerate(RowFilter(condition).chosen(table(ROWS))) if holds] == chosen


@pytest.mark.parametrize(
    ("condition", "fault"),
    [
        ("rewrad < 1", "there is no column rewrad, there are run_id, prompt_id"),
        ("reward", "reward is not a comparison"),
        ("reward <", "is not understood"),
        ("reward < 'high'", "is not understood"),
        ("logprobs == 1", "there is no column logprobs"),
        ("__import__('os').system('touch /tmp/x') == 0", "is not a number or a quoted text"),
        ("reward.__class__ == 1", "is not a number or a quoted text"),
        ("(lambda: 1)() == reward", "is not a number or a quoted text"),
        ("reward is 1", "compare with None only"),
        ("[1 for _ in prompt_id] == reward", "is not a number or a quoted text"),
        ("", "is not understood"),
        ("not " * 5000 + "reward < 1", "is not understood"),
    ],
)
def test_anything_else_is_refused_by_name(condition: str, fault: str) -> None:
    with pytest.raises(JobError, match="where: ") as caught:
        RowFilter(condition)
    assert fault in str(caught.value)


@given(st.text(max_size=40))
def test_no_text_does_anything_but_choose_or_be_refused(text: str) -> None:
    try:
        condition = RowFilter(text)
    except JobError:
        return
    assert len(condition.chosen(table(ROWS))) == len(ROWS)


@given(st.lists(st.none() | st.floats(-2, 2), max_size=8), st.floats(-2, 2))
def test_a_comparison_is_that_of_python_and_leaves_nulls_out(rewards: list[float | None], bound: float) -> None:
    rows = [{**ROWS[0], "sample_index": place, "reward": reward} for place, reward in enumerate(rewards)]
    chosen = RowFilter(f"reward <= {bound!r}").chosen(table(rows))
    assert chosen == [reward is not None and reward <= bound for reward in rewards]
