"""Rating several answers at once, for rewards that wait for others most of the time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain

from rollmill.tasks.rewards.item import Group, Item, Outcome
from rollmill.tasks.rewards.rating import ItemRater, Outcomes, in_threads


class ConcurrentRater(ItemRater):
    """Rates up to `concurrency` answers at once, each alone."""

    def __init__(
        self,
        judge: Callable[[Item], Outcome],
        *,
        concurrency: int,
        missing_column: Callable[[Collection[str]], str | None],
    ) -> None:
        super().__init__(judge)
        self._concurrency = concurrency
        self._missing_column = missing_column

    def rate(self, groups: Sequence[Group]) -> Outcomes:
        rated = iter(in_threads(self.rate_item, list(chain.from_iterable(groups)), self._concurrency))
        return [[next(rated) for _ in group] for group in groups]

    def missing_column(self, columns: Collection[str]) -> str | None:
        return self._missing_column(columns)
