from __future__ import annotations

from threading import Barrier, Event, Lock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.storage.concurrency import made_ahead

ONE_EACH = [1] * 10


class Work:
    """Squares numbers, and counts what has been begun."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self._lock = Lock()

    def square(self, number: int) -> int:
        with self._lock:
            self.begun.append(number)
        if number < 0:
            raise ValueError(f"no root of {number}")
        return number**2


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(0, 9), max_size=12), max_size=st.integers(0, 20))
def test_results_come_in_order_and_no_more_is_ahead_than_allowed(sizes: list[int], max_size: int) -> None:
    work = Work()
    results = made_ahead(work.square, range(len(sizes)), sizes.__getitem__, max_size)
    for place, result in enumerate(results):
        assert result == place**2
        ahead = [sizes[number] for number in work.begun if number > place]
        assert sum(ahead) <= max_size or len(ahead) == 1
    assert sorted(work.begun) == list(range(len(sizes)))


def test_two_items_are_worked_at_the_same_time() -> None:
    both = Barrier(2, timeout=30)
    assert list(made_ahead(lambda number: (both.wait() >= 0, number), range(4), ONE_EACH.__getitem__, 2)) == [
        (True, number) for number in range(4)
    ]


def test_what_an_item_raises_comes_in_its_place() -> None:
    results = made_ahead(Work().square, [1, -2, 3], ONE_EACH.__getitem__, 2)
    assert next(results) == 1
    with pytest.raises(ValueError, match="no root of -2"):
        next(results)


def test_closing_begins_nothing_more_and_waits_for_nothing() -> None:
    goes_on, begun = Event(), []

    def wait(number: int) -> None:
        begun.append(number)
        assert number == 0 or goes_on.wait(30)

    results = made_ahead(wait, range(9), ONE_EACH.__getitem__, 1)
    next(results)
    results.close()
    goes_on.set()
    assert begun in ([0], [0, 1])
