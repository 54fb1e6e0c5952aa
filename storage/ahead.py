"""Items made ahead of their use, in a thread."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Generic, TypeVar

Item = TypeVar("Item")

_SECONDS_FOR_THE_LAST_ITEMS = 10.0


class Ahead(Iterator[Item], Generic[Item]):
    """Iterates over `items` in a thread of its own, at most `depth` items ahead of the one who takes them.

    What `items` raises is raised where the item would have been taken. `close`, or losing the last reference, ends
    the thread after the item that it is at. After a fork the child's copy has no thread and gives nothing.
    """

    def __init__(self, items: Generator[Item, None, None], depth: int) -> None:
        self._queue: SimpleQueue[tuple[Item | None, BaseException | None]] = SimpleQueue()
        self._permits = Semaphore(depth)
        self._closed = Event()
        self._ended = False
        arguments = (items, self._queue, self._permits, self._closed)
        self._thread = Thread(target=_produce, args=arguments, name="rollmill-ahead", daemon=True)
        self._process = os.getpid()
        weakref.finalize(self, _end, self._permits, self._closed, self._process).atexit = False
        _forget_the_ended()
        _RUNNING[self._thread] = (self._permits, self._closed)
        self._thread.start()

    def __next__(self) -> Item:
        if self._ended:
            raise StopIteration
        item, error = self._queue.get()
        self._permits.release()
        if error is not None:
            self._ended = True
            raise error
        return item  # type: ignore[return-value]  # None only beside an error, or where Item has it

    @property
    def is_ready(self) -> bool:
        """Whether the next item, or the end, is there already."""
        return self._ended or not self._queue.empty()

    def close(self) -> None:
        """Take no more; the thread ends by itself."""
        self._ended = True
        _end(self._permits, self._closed, self._process)


def _produce(
    items: Generator[Item, None, None],
    queue: SimpleQueue[tuple[Item | None, BaseException | None]],
    permits: Semaphore,
    closed: Event,
) -> None:
    try:
        while True:
            permits.acquire()
            if closed.is_set():
                return
            queue.put((next(items), None))
    except BaseException as error:  # noqa: BLE001 - it is raised in the thread that takes the item
        queue.put((None, error))
    finally:
        items.close()


def _end(permits: Semaphore, closed: Event, process: int) -> None:
    if os.getpid() == process:  # in a forked child there is no thread to end, and its locks may be held for ever
        closed.set()
        permits.release()


_RUNNING: dict[Thread, tuple[Semaphore, Event]] = {}
"""The threads that may not have ended yet. Copied as a whole, for others change it meanwhile."""


def _forget_the_ended() -> None:
    """Take out threads that are gone; none takes itself out, for it may still have tensors to let go of then."""
    for thread in _RUNNING.copy():
        if thread.ident is not None and not thread.is_alive():
            _RUNNING.pop(thread, None)


@atexit.register
def _end_all() -> None:
    """End the threads, also those whose `Ahead` is gone, before the libraries that they are in are torn down."""
    deadline = time.monotonic() + _SECONDS_FOR_THE_LAST_ITEMS
    while time.monotonic() < deadline and (
        running := {thread: ends for thread, ends in _RUNNING.copy().items() if thread.is_alive()}
    ):  # again and again, for a thread that ends may have begun another
        for permits, closed in running.values():
            _end(permits, closed, os.getpid())
        for thread in running:
            thread.join(max(deadline - time.monotonic(), 0))
