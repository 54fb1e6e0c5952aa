from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from selection_builders import answer, answers, keys
from store_builders import table_of

from rollmill.errors import JobError
from rollmill.tasks.selection.duplicates import (
    ExactDuplicates,
    NearDuplicates,
    drop_exact_duplicates,
    drop_near_duplicates,
)

LONG = "first add the two numbers on the left then take the one on the right away and what is left is {}"


def texts(*given: str, prompt: int = 0, **changes: Any) -> pa.Table:
    return table_of(answer(prompt, sample, response_text=text, **changes) for sample, text in enumerate(given))


@given(answers())
def test_each_text_stays_once_for_each_prompt(table: pa.Table) -> None:
    kept = drop_exact_duplicates(table).table.to_pylist()
    pairs = [(row["prompt_text"], row["response_text"]) for row in kept]
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) == {(row["prompt_text"], row["response_text"]) for row in table.to_pylist()}
    everywhere = [row["response_text"] for row in drop_exact_duplicates(table, "all").table.to_pylist()]
    assert sorted(everywhere) == sorted({row["response_text"] for row in table.to_pylist()})


def test_of_equal_texts_the_best_stays_and_then_the_newest() -> None:
    rows = [
        answer(0, 0, "old", response_text="4", reward=1.0, policy_version=1),
        answer(0, 0, "new", response_text="4", reward=1.0, policy_version=2),
        answer(0, 1, "new", response_text="4", reward=1.0, policy_version=2),
        answer(1, 0, "new", response_text="4", reward=0.0, policy_version=2),
        answer(1, 1, "old", response_text="4", reward=0.5, policy_version=1),
    ]
    found = drop_exact_duplicates(table_of(rows))
    assert keys(found.table) == [("new", "p0", 0), ("old", "p1", 1)]
    assert dict(found.dropped) == {"duplicate": 3}


def test_texts_are_remembered_from_table_to_table() -> None:
    exact, near = ExactDuplicates(), NearDuplicates(0.6)
    for remembering in (exact, near):
        assert remembering.drop(texts(LONG.format(1))).num_kept == 1
        assert remembering.drop(texts(LONG.format(1))).num_kept == 0
        assert remembering.drop(texts(LONG.format(1), prompt=1)).num_kept == 1


def test_answers_that_share_most_words_are_near_duplicates() -> None:
    table = texts(LONG.format("seven"), LONG.upper().format("7"), "something else altogether", "7", "8")
    found = drop_near_duplicates(table, 0.7)
    assert keys(found.table) == [("run", "p0", sample) for sample in (1, 2, 3, 4)] or keys(found.table) == [
        ("run", "p0", sample) for sample in (0, 2, 3, 4)
    ]
    assert dict(found.dropped) == {"near_duplicate": 1}
    assert drop_near_duplicates(table, 1.0).num_kept == 5


def test_short_answers_to_other_prompts_are_duplicates_only_where_all_are_looked_at() -> None:
    rows = [answer(prompt, 0, response_text="it is 4") for prompt in range(3)]
    assert drop_near_duplicates(table_of(rows), 0.8).num_kept == 3
    assert drop_near_duplicates(table_of(rows), 0.8, "all").num_kept == 1


def test_text_without_spaces_is_compared_by_its_characters() -> None:
    one, other = (
        "左辺の二つの数を足してから右の数を引くと答えは七です",
        "左辺の二つの数を足してから右の数を引くと答えは八です",
    )
    assert drop_near_duplicates(texts(one, other), 0.6).num_kept == 1
    assert drop_near_duplicates(texts(one, "まったく別の文章がここに書いてあります"), 0.6).num_kept == 2


@pytest.mark.parametrize(("threshold", "scope"), [(0.0, "prompt"), (1.1, "prompt"), (0.5, "run")])
def test_a_threshold_or_scope_that_is_none_is_refused(threshold: float, scope: Any) -> None:
    with pytest.raises(JobError, match=r"near_duplicates must be from 0\.1 to 1|duplicate_scope must be prompt or all"):
        NearDuplicates(threshold, scope)
