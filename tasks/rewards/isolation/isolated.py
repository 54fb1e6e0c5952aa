"""Raters whose work is done in workers that can be killed."""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from rollmill.errors import RewardError
from rollmill.tasks.rewards.isolation.fork_server import ForkServer, fork_server
from rollmill.tasks.rewards.isolation.frames import FrameSocket
from rollmill.tasks.rewards.isolation.worker import WorkerSpec, decode, outcome_of_plain
from rollmill.tasks.rewards.item import Group, Item, Outcome, describe, failure
from rollmill.tasks.rewards.rating import BatchRater, ItemRater, Outcomes, Rater, UnavailableError

_SECONDS_TO_DIE = 5.0
_ITEMS_PER_REQUEST = 256


MissingColumn = Callable[[Collection[str]], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a reward may take. A call is one answer, or one batch of a batched function; `max_workers` is how many
    processes have the reward at once, None for one a thread that scores."""

    seconds_per_call: float
    memory_bytes: int | None = None
    seconds_to_start: float = 120.0
    max_workers: int | None = None


class WorkerEndedError(RewardError):
    """A worker ended before it answered."""


class WorkerHungError(WorkerEndedError):
    """A worker did not answer in time, and was ended."""


class Worker:
    """One child process with the reward built in it."""

    def __init__(self, server: ForkServer, spec: WorkerSpec, seconds_to_start: float) -> None:
        self._server = server
        self._pid, connection = server.fork(spec)
        self._frames = FrameSocket(connection)
        self.is_fresh = True
        try:
            refusal = json.loads(self.receive(seconds_to_start))
        except WorkerEndedError as error:
            raise UnavailableError(f"the reward's process could not start: {error}") from error
        if refusal is not None:
            self.end()
            raise UnavailableError(f"the reward's process could not start: {refusal}")

    def send(self, request: bytes) -> None:
        """Ask, with pickled items, for one answer each, or with groups for one answer. Raises WorkerEndedError."""
        try:
            self._frames.send(request)
        except OSError as error:
            raise WorkerEndedError(f"its process {self.end(_SECONDS_TO_DIE)}") from error

    def receive(self, seconds: float) -> bytes:
        """Return the next answer. Raises WorkerEndedError when there is none within `seconds`, and ends the worker."""
        try:
            return self._frames.receive(seconds)
        except TimeoutError as error:
            self.end()
            raise WorkerHungError(f"no result within {seconds:g} s, and its process was ended") from error
        except EOFError as error:
            raise WorkerEndedError(f"its process {self.end(_SECONDS_TO_DIE)}") from error

    def end(self, seconds: float = 0.0) -> str:
        """End the process, unless it does so itself within `seconds`, and return how it ended."""
        self._frames.close()
        return self._server.end(self._pid, seconds=seconds)


class WorkerPool:
    """As many workers as threads rate at once; each keeps its reward from call to call."""

    def __init__(self, config: dict[str, Any], limits: Limits) -> None:
        self._config = config
        self._limits = limits
        self._places = nullcontext() if limits.max_workers is None else threading.Semaphore(limits.max_workers)
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _end_all, self._idle)

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        """Lend a worker; it comes back unless the block raises."""
        with self._places:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                worker = self._start()
            try:
                yield worker
            except WorkerEndedError:
                raise  # it is gone already
            except BaseException:
                worker.end()  # it may be in the middle of an answer that nobody will read
                raise
            worker.is_fresh = False
            with self._lock:
                self._idle.append(worker)

    def _start(self) -> Worker:
        spec = WorkerSpec(
            config=self._config, sys_path=list(sys.path), folder=os.getcwd(), memory_bytes=self._limits.memory_bytes
        )
        return Worker(fork_server(), spec, self._limits.seconds_to_start)


def _end_all(workers: list[Worker]) -> None:
    for worker in workers:
        worker.end()


class IsolatedItems(Rater):
    """Rates one answer at a time in a worker. An answer that ends its worker fails, and the next has a new one.

    A worker that had served others before may have ended for their sake (memory that they leaked); the answer is then
    tried once more in a fresh one.
    """

    def __init__(self, rater: ItemRater, config: dict[str, Any], limits: Limits) -> None:
        self._rater = rater
        self._limits = limits
        self._pool = WorkerPool(config, limits)

    def rate(self, groups: Sequence[Group]) -> Outcomes:
        outcomes = self._rate_all([item for group in groups for item in group])
        rest = iter(outcomes)
        return [[next(rest) for _ in group] for group in groups]

    def missing_column(self, columns: Collection[str]) -> str | None:
        return self._rater.missing_column(columns)

    def _rate_all(self, items: Sequence[Item]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while len(outcomes) < len(items):
            try:
                with self._pool.worker() as worker:
                    self._rate_with(worker, items, outcomes)
            except WorkerEndedError as error:
                if worker.is_fresh or isinstance(error, WorkerHungError):
                    outcomes.append(failure(str(error)))
            except UnavailableError as error:
                return outcomes + [failure(str(error))] * (len(items) - len(outcomes))
        return outcomes

    def _rate_with(self, worker: Worker, items: Sequence[Item], outcomes: list[Outcome]) -> None:
        """Add outcomes of the items that have none yet, as far as the worker comes."""
        while len(outcomes) < len(items):
            asked = list(items[len(outcomes) : len(outcomes) + _ITEMS_PER_REQUEST])
            try:
                request = _pickled(asked)
            except RewardError:
                asked = asked[:1]
                try:
                    request = _pickled(asked)
                except RewardError as error:
                    outcomes.append(failure(str(error)))
                    continue
            worker.send(request)
            for _ in asked:
                outcomes.append(decode(worker.receive(self._limits.seconds_per_call)))
                worker.is_fresh = False


class IsolatedBatches(BatchRater):
    """Rates batches in a worker. A batch that ends its worker, or raises, is halved."""

    def __init__(
        self,
        config: dict[str, Any],
        limits: Limits,
        *,
        answers_per_call: int | None = None,
        missing_column: MissingColumn = lambda _columns: None,
    ) -> None:
        super().__init__(answers_per_call=answers_per_call)
        self._missing_column = missing_column
        self._limits = limits
        self._pool = WorkerPool(config, limits)

    def missing_column(self, columns: Collection[str]) -> str | None:
        return self._missing_column(columns)

    def rate_batch(self, groups: Sequence[Group]) -> Outcomes:
        with self._pool.worker() as worker:
            worker.send(_pickled(list(groups)))
            answer = json.loads(worker.receive(self._limits.seconds_per_call))
        if isinstance(answer, str):
            raise RewardError(answer)
        return [[outcome_of_plain(plain) for plain in group] for group in answer]


def _pickled(request: list[Item] | list[Group]) -> bytes:
    try:
        return pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise RewardError(f"the prompt's columns cannot be sent to the reward's process: {describe(error)}") from error


def isolated(rater: Rater, config: dict[str, Any], limits: Limits) -> Rater:
    """Return a rater that does the work of `rater`, which `config` describes, in workers."""
    if isinstance(rater, ItemRater):
        return IsolatedItems(rater, config, limits)
    assert isinstance(rater, BatchRater)
    return IsolatedBatches(config, limits, answers_per_call=rater.answers_per_call, missing_column=rater.missing_column)
