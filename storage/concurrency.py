"""Many small requests at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_REQUESTS_AT_ONCE = 16


def at_once(action: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return `action` of each item, in order; the first exception is raised after those already begun have ended."""
    with ThreadPoolExecutor(_MAX_REQUESTS_AT_ONCE, thread_name_prefix="store") as threads:
        return list(threads.map(action, items))
