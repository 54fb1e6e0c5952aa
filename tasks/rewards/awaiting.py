"""Waiting for an async function from a plain one."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable
from functools import lru_cache
from typing import TypeVar

Value = TypeVar("Value")


def wait_for(awaitable: Awaitable[Value]) -> Value:
    """Return what `awaitable` comes to, or raise what it raises.

    All run on one event loop in a thread of its own, so that a client that a user keeps from call to call stays on the
    loop it was made on, whichever thread asks.
    """
    future = asyncio.run_coroutine_threadsafe(_caught(awaitable), _loop(os.getpid()))
    try:
        value, error = future.result()
    except BaseException:
        future.cancel()
        raise
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


async def _caught(awaitable: Awaitable[Value]) -> tuple[Value | None, BaseException | None]:
    try:
        return await awaitable, None
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - it is raised where it is waited for
        # An exit that is raised inside a loop would end the loop.
        return None, error


@lru_cache(maxsize=1)
def _loop(process_id: int) -> asyncio.AbstractEventLoop:
    """Return the running loop of this process; a forked child has another id, and gets its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=f"rewards-{process_id}", daemon=True)
    thread.start()
    atexit.register(_end, loop, thread)
    return loop


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if thread.is_alive():
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
    loop.close()
