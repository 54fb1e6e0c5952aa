"""Reward `http`: a service of one's own scores batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from rollmill.errors import RewardError
from rollmill.tasks.rewards.item import Group, Item, outcome_of
from rollmill.tasks.rewards.rating import BatchRater, Outcomes, UnavailableError, missing_names
from rollmill.tasks.rewards.service import Service


class HttpRater(BatchRater):
    """Posts batches of answers as JSON to a service, and takes one number an answer.

    Asked is `{"prompts": [...], "responses": [...], "columns": {"name": [...]}}`, flat lists with one entry an answer;
    `columns` are those that the job names. Answered is a list of numbers, or an object with such a list as `rewards`
    or `scores`; null is an answer that the service could not judge. A batch that the service refuses, or answers for
    fewer items, is halved; when the service cannot be used at all, the whole batch fails at once.
    """

    def __init__(
        self, service: Service, columns: Sequence[str] = (), *, answers_per_call: int = 64, concurrency: int = 4
    ) -> None:
        super().__init__(answers_per_call=answers_per_call, concurrency=concurrency)
        self._service = service
        self._columns = list(columns)

    def missing_column(self, columns: Collection[str]) -> str | None:
        return missing_names(self._columns, columns)

    def rate_batch(self, groups: Sequence[Group]) -> Outcomes:
        items = list(chain.from_iterable(groups))
        scores = scores_of(self._service.post(request_of(items, self._columns)), self._service.url)
        if len(scores) != len(items):
            raise RewardError(f"{self._service.url} returned {len(scores)} scores for {len(items)} answers")
        remaining = iter(scores)
        return [[outcome_of(next(remaining)) for _ in group] for group in groups]


def request_of(items: Sequence[Item], columns: Sequence[str]) -> dict[str, Any]:
    """Return what is posted.

    >>> request_of([Item(prompt="2+2?", response="4", columns={"answer": 4, "id": 1})], ["answer"])
    {'prompts': ['2+2?'], 'responses': ['4'], 'columns': {'answer': [4]}}
    """
    return {
        "prompts": [item.prompt for item in items],
        "responses": [item.response for item in items],
        "columns": {name: [item.columns.get(name) for item in items] for name in columns},
    }


def scores_of(answer: object, url: str) -> list[object]:
    """Return the list of scores in what a service answered. Raises UnavailableError when there is none.

    >>> scores_of({"rewards": [1.0, None]}, "http://localhost")
    [1.0, None]
    """
    if isinstance(answer, Mapping):
        answer = next((answer[name] for name in ("rewards", "scores") if name in answer), answer)
    if not isinstance(answer, list):
        raise UnavailableError(f"{url} answered without a list of rewards: {str(answer)[:200]}")
    return answer
