"""Many small requests at once, and work made ahead in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_REQUESTS_AT_ONCE = 16


def at_once(action: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return `action` of each item, in order; the first exception is raised after those already begun have ended."""
    with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE, thread_name_prefix="store") as threads:
        return list(threads.map(action, items))


def made_ahead(
    action: Callable[[Item], Result],
    items: Iterable[Item],
    size: Callable[[Item], int],
    max_size: int,
    max_threads: int = MAX_REQUESTS_AT_ONCE,
) -> Generator[Result, None, None]:
    """Yield `action` of each item, in order, while threads are at the next ones.

    Begun and not taken yet are items of at most `max_size` together, but at least one. What `action` raises is raised
    where its result would have been taken. Closing begins nothing more, and waits for nothing.
    """
    waiting = deque(items)
    begun: deque[tuple[Item, Future[Result]]] = deque()
    threads = ThreadPoolExecutor(max_threads, thread_name_prefix="ahead")
    closed: list[bool] = []  # no Event and no cancelling: when the interpreter ends, their modules may be gone

    def act(item: Item) -> Result:
        if closed:
            raise CancelledError
        return action(item)

    def begin() -> None:
        total = sum(size(item) for item, _ in begun)
        while waiting and (not begun or total + size(waiting[0]) <= max_size):
            total += size(waiting[0])
            begun.append((waiting[0], threads.submit(act, waiting.popleft())))

    try:
        begin()
        while begun:
            result = begun.popleft()[1].result()
            begin()
            yield result
            del result
    finally:
        closed.append(True)
        threads.shutdown(wait=False)
