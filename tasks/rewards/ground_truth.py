"""Where the right answer is found among a prompt's columns: one rule for every reward that needs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rollmill.errors import RewardError

ANSWER_COLUMNS = ("answer", "ground_truth", "solution")
NESTED_COLUMN, NESTED_KEY = "reward_model", "ground_truth"
LOOKED_AT = f"{', '.join(ANSWER_COLUMNS)} and {NESTED_COLUMN}.{NESTED_KEY}"


def ground_truth(columns: Mapping[str, Any], answer_column: str | None = None) -> Any:
    """Return the prompt's right answer.

    It is the column that `answer_column` names (a dot reaches into a column of objects), or else the first that is
    not null of `answer`, `ground_truth`, `solution` and `reward_model.ground_truth`. Raises RewardError when there is
    none, so that the item fails by name.
    """
    if answer_column is not None:
        value = _reach(columns, answer_column)
        if value is None:
            raise RewardError(f"this prompt has no value in the column {answer_column}")
        return value
    for name in (*ANSWER_COLUMNS, f"{NESTED_COLUMN}.{NESTED_KEY}"):
        value = _reach(columns, name)
        if value is not None:
            return value
    raise RewardError(f"this prompt has no ground truth: {LOOKED_AT} are all missing or null")


def accepted_answers(columns: Mapping[str, Any], answer_column: str | None = None) -> list[str]:
    """Return the right answer as text; a list is several answers, each of them right. Raises RewardError."""
    truth = ground_truth(columns, answer_column)
    values = truth if isinstance(truth, list) else [truth]
    if not values or any(not isinstance(value, (str, int, float)) for value in values):
        raise RewardError("the ground truth must be a text, a number or a list of these that is not empty")
    return [str(value) for value in values]


def missing_ground_truth(columns: Collection[str], answer_column: str | None = None) -> str | None:
    """Return what is missing when no prompt can have a ground truth, given the names of its columns; None when fine."""
    if answer_column is not None:
        known = answer_column in columns or answer_column.partition(".")[0] in columns
        return None if known else f"the column {answer_column}"
    return None if set(columns) & {*ANSWER_COLUMNS, NESTED_COLUMN} else f"one of the columns {LOOKED_AT}"


def _reach(columns: Mapping[str, Any], name: str) -> Any:
    if name in columns:
        return columns[name]
    outer, _, inner = name.partition(".")
    value = columns.get(outer)
    return _reach(value, inner) if inner and isinstance(value, Mapping) else None
