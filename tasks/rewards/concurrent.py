"""Rating several answers at once, for rewards that wait for others most of the time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from rollmill.tasks.rewards.item import Group, Item, Outcome
from rollmill.tasks.rewards.rating import ItemRater, Outcomes


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
        with ThreadPoolExecutor(self._concurrency) as pool:
            try:
                rated = [[pool.submit(self.rate_item, item) for item in group] for group in groups]
                return [[outcome.result() for outcome in group] for group in rated]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def missing_column(self, columns: Collection[str]) -> str | None:
        return self._missing_column(columns)
