"""Something that happens beside what a test waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Do something beside what is inside, and fail when it failed."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    assert not failed
