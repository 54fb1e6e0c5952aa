"""The ground truth is found where the field's datasets keep it."""

import pytest

from rollmill.errors import RewardError
from rollmill.tasks.rewards.ground_truth import ground_truth, missing_ground_truth

VERL = {"reward_model": {"style": "rule", "ground_truth": "9"}}


def test_columns_are_looked_at_in_their_order_and_nulls_are_passed_over() -> None:
    columns = {"answer": None, "solution": "2", "ground_truth": "1", **VERL}
    assert ground_truth(columns) == "1"
    assert ground_truth({**columns, "answer": 0}) == 0
    assert ground_truth({"solution": "2", **VERL}) == "2"
    assert ground_truth(VERL) == "9"


def test_a_named_column_is_the_only_one_looked_at() -> None:
    columns = {"answer": "no", "label": "yes", "extra": {"deep": {"er": 3}}, "a.b": 4}
    assert ground_truth(columns, "label") == "yes"
    assert ground_truth(columns, "extra.deep.er") == 3
    assert ground_truth(columns, "a.b") == 4
    with pytest.raises(RewardError, match="no value in the column other"):
        ground_truth(columns, "other")
    with pytest.raises(RewardError, match=r"label\.x"):
        ground_truth(columns, "label.x")


@pytest.mark.parametrize("columns", [{}, {"answer": None}, {"reward_model": {"style": "rule"}}, {"reward_model": "x"}])
def test_a_prompt_without_one_fails_by_name(columns: dict[str, object]) -> None:
    with pytest.raises(RewardError, match="answer, ground_truth, solution"):
        ground_truth(columns)


@pytest.mark.parametrize("column", ["answer", "ground_truth", "solution", "reward_model"])
def test_any_of_the_known_columns_is_enough_before_anything_runs(column: str) -> None:
    assert missing_ground_truth([column, "id"]) is None


def test_what_is_missing_is_named_before_anything_runs() -> None:
    assert "reward_model.ground_truth" in str(missing_ground_truth(["question"]))
    assert missing_ground_truth(["answer"], "label") == "the column label"
    assert missing_ground_truth(["label"], "label.inner") is None
