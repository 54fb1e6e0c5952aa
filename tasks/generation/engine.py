"""The engines of a job: one per device, each started at the first work, and fed by any number of threads.

An engine loads its policy once. All work in flight on it shares one batch. When it dies, everyone who waits on it gets
EngineDiedError, and the next work starts a new one. Where engines are started, and how messages reach them, is the
business of their places.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import Protocol

from rollmill.errors import EngineDiedError
from rollmill.tasks.generation.config import EngineConfig, PolicyConfig
from rollmill.tasks.generation.engine_client import EngineClient, EngineLink, LogCallback, ProgressCallback
from rollmill.tasks.generation.engine_messages import Done
from rollmill.tasks.generation.runner_config import LOCAL, LocalRunner, RayRunner
from rollmill.tasks.generation.runners import engine_places
from rollmill.tasks.generation.types import FinishedGroup, PromptGroup

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 1.0


class EnginePlaces(Protocol):
    """Where the engines of a job run."""

    @property
    def num_places(self) -> int:
        """How many engines there are when all are running."""
        ...

    def start(self, place: int) -> EngineLink:
        """Start the engine of a place, without waiting for it."""
        ...

    def give_up(self, seconds_waited: float) -> None:
        """Raise GenerationError when work has waited too long while no engine had a machine to run on."""
        ...

    def close(self) -> None:
        """Give back what the places took, once every engine was killed; may be called again."""
        ...


def start_engines(
    policy: PolicyConfig,
    engine: EngineConfig,
    runner: LocalRunner | RayRunner = LOCAL,
    on_log: LogCallback = logger.log,
) -> Engines:
    """Return the engines of a job, one per device; use them in a `with` block. None is started before it is needed.

    Raises JobError when the devices or the cluster that they are to run on are not there.
    """
    places = engine_places(policy, engine, runner)
    return Engines(
        places, max_batch_size=engine.max_batch_size, seconds_per_work=engine.seconds_per_shard, on_log=on_log
    )


def works_at_once(max_batch_size: int, rows_per_work: int) -> int:
    """Return how many works keep an engine's batch full: enough for all of it, and one to follow."""
    return math.ceil(max_batch_size / max(1, rows_per_work)) + 1


class Engines:
    """Spreads work over the engines; every method may be called from several threads at once."""

    def __init__(
        self, places: EnginePlaces, *, max_batch_size: int, seconds_per_work: float, on_log: LogCallback = logger.log
    ) -> None:
        self._places = places
        self._max_batch_size = max_batch_size
        self._seconds_per_work = seconds_per_work
        self._on_log = on_log
        self._slots: list[EngineClient] = []
        self._changed = threading.Condition()
        self._closed = False

    def __enter__(self) -> Engines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_engines(self) -> int:
        """How many engines there are when all are running."""
        return self._places.num_places

    def generate(
        self, groups: Sequence[PromptGroup], on_progress: ProgressCallback | None = None
    ) -> list[FinishedGroup]:
        """Do what `answer` does, and return the answers alone."""
        return list(self.answer(groups, on_progress).groups)

    def answer(self, groups: Sequence[PromptGroup], on_progress: ProgressCallback | None = None) -> Done:
        """Answer `groups` on the engine with the least work; return the answers in the same order, and what they took.

        An engine whose batch is full, with work to follow, is given no more; the call then waits, for this engine or
        another. Raises EngineDiedError when the engine ends or does not answer in time (then it is killed), PolicyError
        when it cannot run the policy at all, and GenerationError when no engine gets a machine to run on.
        """
        engine, answer = self._submit(tuple(groups), on_progress)
        try:
            return answer.result(timeout=self._seconds_per_work)
        except FutureTimeoutError:
            engine.kill()
            raise EngineDiedError(
                f"the {engine.name} did not answer within {self._seconds_per_work:g} s and was killed"
            ) from None

    def close(self) -> None:
        """End every engine; whoever still waits gets EngineDiedError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for engine in self._slots:
            engine.kill()
        for engine in self._slots:
            engine.join()
        self._places.close()

    def _submit(
        self, groups: tuple[PromptGroup, ...], on_progress: ProgressCallback | None
    ) -> tuple[EngineClient, Future[Done]]:
        rows = sum(len(group.seeds) for group in groups)
        with self._changed:
            self._start_missing()
            waiting_since = time.monotonic()
            while (engine := self._engine_with_room(rows)) is None:
                if any(engine.is_placed for engine in self._slots):
                    waiting_since = time.monotonic()
                self._places.give_up(time.monotonic() - waiting_since)
                self._changed.wait(_SECONDS_BETWEEN_LOOKS)
            return engine, engine.submit(groups, on_progress)

    def _start_missing(self) -> None:
        """Start the engines that have never run or have ended."""
        if self._closed:
            raise EngineDiedError("the engines were closed")
        for place in range(self._places.num_places):
            if place == len(self._slots):
                self._slots.append(self._start(place))
            elif self._slots[place].is_dead:
                self._slots[place] = self._start(place)

    def _start(self, place: int) -> EngineClient:
        return EngineClient(self._places.start(place), self._on_log, self._say_that_something_changed)

    def _say_that_something_changed(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _engine_with_room(self, rows: int) -> EngineClient | None:
        """Return the engine with the least work, of those that can take more; raise when there is none to wait for."""
        if self._closed:
            raise EngineDiedError("the engines were closed")
        if all(engine.is_dead for engine in self._slots):
            raise self._slots[0].error()
        most = works_at_once(self._max_batch_size, rows)
        free = [engine for engine in self._slots if engine.is_placed and engine.num_pending_works < most]
        return min(free, key=lambda engine: engine.num_pending_groups, default=None)
