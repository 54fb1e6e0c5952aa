"""Functions as TRL's trainers call them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from rollmill.errors import RewardError
from rollmill.tasks.rewards.awaiting import wait_for
from rollmill.tasks.rewards.item import Group, Item, finite_or_none, outcome_of
from rollmill.tasks.rewards.rating import BatchRater, Outcomes, missing_names, prompt_columns
from rollmill.tasks.rewards.signature import accepted_keywords

SERVED = frozenset({"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"})


class TrlRater(BatchRater):
    """Calls `function(prompts, completions, **columns) -> list[float | None]`, plain or async.

    All lists are flat, with one entry an answer: a prompt and its columns are repeated for each of its answers. With
    `conversational` a prompt is a list of chat messages and a completion a list of one assistant message, else both
    are text. `options` are passed as they are, and hide columns of their names. `completion_ids` are the sampled
    tokens; `trainer_state` is None, for there is no trainer. A function that names `log_extra` may give it a name and
    one value an answer, which are kept beside the reward; what it gives `log_metric` is of the batch, and not kept.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Mapping[str, Any] | None = None,
        *,
        conversational: bool = False,
        answers_per_call: int | None = None,
    ) -> None:
        super().__init__(answers_per_call=answers_per_call)
        self._function = function
        self._options = dict(options or {})
        self._conversational = conversational
        self._accepted = accepted_keywords(function, given=self._options)

    def missing_column(self, columns: Collection[str]) -> str | None:
        return missing_names(self._accepted.required - SERVED, columns)

    def rate_batch(self, groups: Sequence[Group]) -> Outcomes:
        items = list(chain.from_iterable(groups))
        columns = {name: values for name, values in prompt_columns(items).items() if name not in SERVED}
        arguments = self._accepted.select({**columns, **self._served(items)})
        extras: dict[str, list[object]] = {}
        if "log_extra" in self._accepted.named:
            arguments["log_extra"] = lambda name, values: extras.update({str(name): list(values)})
        if "log_metric" in self._accepted.named:
            arguments["log_metric"] = _drop_metric
        values = self._function(**arguments, **self._options)
        if inspect.isawaitable(values):
            values = wait_for(values)
        return _grouped(_listed(values, len(items)), extras, groups)

    def _served(self, items: Sequence[Item]) -> dict[str, Any]:
        served: dict[str, Any] = {
            "prompts": [self._prompt(item) for item in items],
            "completions": [self._completion(item) for item in items],
            "completion_ids": [list(item.token_ids or ()) for item in items],
        }
        if "trainer_state" in self._accepted.named:
            served["trainer_state"] = None
        return served

    def _prompt(self, item: Item) -> Any:
        if not self._conversational:
            return item.prompt
        return list(item.messages) if item.messages else [{"role": "user", "content": item.prompt}]

    def _completion(self, item: Item) -> Any:
        return [{"role": "assistant", "content": item.response}] if self._conversational else item.response


def _listed(values: object, count: int) -> list[object]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise RewardError(f"the function returned {type(values).__name__}, expected a list of {count} numbers")
    listed = list(values)
    if len(listed) != count:
        raise RewardError(f"the function returned {len(listed)} values for {count} answers")
    return listed


def _grouped(values: Sequence[object], extras: Mapping[str, Sequence[object]], groups: Sequence[Group]) -> Outcomes:
    whole = {name: extra for name, extra in extras.items() if len(extra) == len(values)}
    outcomes = (
        outcome_of(value, {name: finite_or_none(extra[index]) for name, extra in whole.items()})
        for index, value in enumerate(values)
    )
    return [[next(outcomes) for _ in group] for group in groups]


def _drop_metric(name: str, value: object) -> None:  # noqa: ARG001 - a metric of a batch belongs to no answer of it
    return None
