"""The parent's side of one engine: what it was asked, who waits for it, and what they get when it ends."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

from rollmill.errors import EngineDiedError, PolicyError
from rollmill.tasks.generation.engine_messages import Done, Failed, LogLine, Message, Progress, Work
from rollmill.tasks.generation.types import PromptGroup

ProgressCallback = Callable[[int, int], None]
"""Called with (rows finished, tokens sampled) since the last call, from the engine's own thread."""

LogCallback = Callable[[int, str], None]
"""Called with (level, text) of each line that an engine logs, from the engine's own thread."""

_SECONDS_TO_END = 5.0


class EngineLink(Protocol):
    """An engine that was started, and what carries messages to it and back. Any thread may use it."""

    @property
    def name(self) -> str:
        """What log lines and errors call it: `engine on ...`."""
        ...

    @property
    def pid(self) -> int | None:
        """Its process id, on its own machine; None before it has a machine."""
        ...

    @property
    def is_placed(self) -> bool:
        """Whether it has a machine to run on; it may still be loading its policy."""
        ...

    def send(self, work: Work) -> None:
        """Send work; raises OSError when the engine is gone."""
        ...

    def receive(self) -> Message:
        """Wait for the next message; raises EOFError when the engine has ended."""
        ...

    def kill(self) -> None:
        """End it at once, whatever it does."""
        ...

    def ending(self) -> str:
        """Return how it ended, once `receive` has said that it did."""
        ...


class EngineClient:
    """Work that is in progress on one engine, and the thread that reads the engine's messages.

    `on_change` is called, from that thread, whenever the engine may have become able to take work, or has ended.
    """

    def __init__(self, link: EngineLink, on_log: LogCallback, on_change: Callable[[], None]) -> None:
        self.is_dead = False
        self._link = link
        self._on_log = on_log
        self._on_change = on_change
        self._was_killed = False
        self._ending = ""
        self._work_ids = itertools.count()
        self._pending: dict[int, tuple[Work, Future[Done]]] = {}
        self._listeners: dict[int, ProgressCallback] = {}
        self._failure: Failed | None = None
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True, name="rollmill-engine")
        self._listener.start()

    @property
    def name(self) -> str:
        """What log lines and errors call the engine."""
        return self._link.name

    @property
    def pid(self) -> int | None:
        """The engine's process id, on its own machine."""
        return self._link.pid

    @property
    def is_placed(self) -> bool:
        """Whether it can be given work: it has a machine, and has not ended."""
        return self._link.is_placed and not self.is_dead

    @property
    def num_pending_works(self) -> int:
        """Works that were submitted and have not come back."""
        with self._lock:
            return len(self._pending)

    @property
    def num_pending_groups(self) -> int:
        """Groups that were submitted and have not come back."""
        with self._lock:
            return sum(len(work.groups) for work, _ in self._pending.values())

    def submit(self, groups: tuple[PromptGroup, ...], on_progress: ProgressCallback | None) -> Future[Done]:
        """Send work; the future gets the answers, or EngineDiedError."""
        answer: Future[Done] = Future()
        work = Work(work_id=next(self._work_ids), groups=groups)
        with self._lock:
            if self.is_dead:
                raise self.error()
            self._pending[work.work_id] = (work, answer)
            if on_progress is not None:
                self._listeners[work.work_id] = on_progress
        with suppress(OSError):  # then it is gone, which the listener learns too, and tells whoever waits
            self._link.send(work)
        return answer

    def kill(self) -> None:
        """End the engine at once; whoever waits gets EngineDiedError, even before the engine is known to be gone."""
        self._was_killed = True
        self._ending = "was killed"
        self._link.kill()
        self._end()

    def join(self) -> None:
        """Wait until the end of an engine that was killed is known here."""
        self._listener.join(_SECONDS_TO_END)

    def error(self) -> EngineDiedError | PolicyError:
        """Return what to raise for an engine that has ended."""
        if self._failure is not None and self._failure.is_input_error:
            return PolicyError(self._failure.message)
        if self._failure is not None:
            return EngineDiedError(f"the {self.name} stopped: {self._failure.message}")
        return EngineDiedError(f"the {self.name} {self._ending or 'ended'}")

    def _listen(self) -> None:
        while True:
            try:
                message = self._link.receive()
            except (EOFError, OSError):
                break
            self._handle(message)
            self._on_change()
        ending = self._link.ending()
        if not self._was_killed:
            self._ending = ending
        self._end()
        self._on_change()

    def _handle(self, message: Message) -> None:
        if isinstance(message, Failed):
            self._failure = message
        elif isinstance(message, LogLine):
            self._on_log(message.level, f"{self.name}: {message.text}")
        elif isinstance(message, Progress):
            with self._lock:
                listeners = list(self._listeners.values())
            if listeners:  # all work shares the batch, so one listener speaks for the engine
                listeners[0](message.num_rows, message.num_tokens)
        elif isinstance(message, Done):
            self._finish(message)

    def _finish(self, done: Done) -> None:
        with self._lock:
            self._listeners.pop(done.work_id, None)
            pending = self._pending.pop(done.work_id, None)
        if pending is not None:  # else the engine was killed with this on its way
            pending[1].set_result(done)

    def _end(self) -> None:
        with self._lock:
            self.is_dead = True
            waiting = [answer for _, answer in self._pending.values()]
            self._pending.clear()
            self._listeners.clear()
        for answer in waiting:
            answer.set_exception(self.error())
        if not waiting and not self._was_killed:
            self._on_log(logging.WARNING, str(self.error()))
