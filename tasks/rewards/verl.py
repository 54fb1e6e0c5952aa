"""Functions as verl's reward managers call them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rollmill.tasks.rewards.awaiting import wait_for
from rollmill.tasks.rewards.ground_truth import ground_truth, missing_ground_truth
from rollmill.tasks.rewards.item import Item, Outcome, failure, finite_or_none, outcome_of
from rollmill.tasks.rewards.rating import ItemRater
from rollmill.tasks.rewards.signature import accepted_keywords

ARGUMENTS = frozenset({"data_source", "solution_str", "ground_truth", "extra_info"})


class VerlRater(ItemRater):
    """Calls `compute_score(data_source, solution_str, ground_truth, extra_info=None)`, plain or async.

    `data_source` is the prompt's column of that name, or empty text; `extra_info` that column, or an empty dict;
    `options` are passed as they are. The function returns a number, a list or tuple that starts with one, or a dict
    whose `score` is the reward; the dict's other entries are kept beside it, null where they are not finite numbers.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Mapping[str, Any] | None = None,
        *,
        answer_column: str | None = None,
    ) -> None:
        super().__init__(self._call)
        self._function = function
        self._options = dict(options or {})
        self._accepted = accepted_keywords(function, given=self._options)
        self._answer_column = answer_column

    def missing_column(self, columns: Collection[str]) -> str | None:
        return missing_ground_truth(columns, self._answer_column)

    def _call(self, item: Item) -> Outcome:
        arguments = {
            "data_source": item.columns.get("data_source") or "",
            "solution_str": item.response,
            "ground_truth": ground_truth(item.columns, self._answer_column),
            "extra_info": item.columns.get("extra_info") or {},
        }
        result = self._function(**self._accepted.select(arguments), **self._options)
        if inspect.isawaitable(result):
            result = wait_for(result)
        if isinstance(result, Mapping):
            return _from_dict(result)
        return outcome_of(result[0] if isinstance(result, (list, tuple)) and result else result)


def _from_dict(result: Mapping[Any, Any]) -> Outcome:
    parts = {str(name): finite_or_none(value) for name, value in result.items() if name != "score"}
    if "score" not in result:
        return failure(f"the function returned a dict without score; it has {', '.join(map(str, result))}", parts)
    return outcome_of(result["score"], parts)
