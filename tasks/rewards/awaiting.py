"""Waiting for an async function from a plain one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import TypeVar

Value = TypeVar("Value")


def wait_for(awaitable: Awaitable[Value]) -> Value:
    """Return what `awaitable` comes to, whether or not an event loop is already running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_value(awaitable))
    done: Future[Value] = Future()
    thread = threading.Thread(target=_finish, args=(awaitable, done))
    thread.start()
    thread.join()
    return done.result()


async def _value(awaitable: Awaitable[Value]) -> Value:
    return await awaitable


def _finish(awaitable: Awaitable[Value], done: Future[Value]) -> None:
    try:
        done.set_result(asyncio.run(_value(awaitable)))
    except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
        done.set_exception(error)
