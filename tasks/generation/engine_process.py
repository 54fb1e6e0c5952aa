"""The child side of an engine: load the policy once, then answer shards until the parent goes away."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection

from rollmill.errors import GenerationError, InputError, RollmillError
from rollmill.tasks.generation.backend import is_out_of_memory, load_backend
from rollmill.tasks.generation.types import FinishedGroup, PromptGroup

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_PROGRESS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """All that a child needs to know to load its policy."""

    model: str
    dtype: str
    device: str
    num_threads: int
    max_batch_size: int
    max_seq_len: int | None
    backend: str
    memory_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Parent to child: answer these groups."""

    work_id: int
    groups: tuple[PromptGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Child to parent: the policy is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Child to parent: rows finished and tokens sampled since the last such message."""

    num_rows: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Child to parent: the answers to one `Work`, in the order of its groups."""

    work_id: int
    groups: tuple[FinishedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """Child to parent: what the engine has to say; `level` is one of the logging module's."""

    level: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Child to parent: the engine cannot go on. `is_input_error` says that trying again would not help."""

    message: str
    is_input_error: bool


Message = Ready | Progress | Done | LogLine | Failed


@dataclass(slots=True)
class _Pending:
    """One `Work` that is being answered, and the answers by place."""

    groups: tuple[PromptGroup, ...]
    finished: dict[int, FinishedGroup] = field(default_factory=dict)


class _LogPipe(logging.Handler):
    """Sends log records to the parent."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.INFO)
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        self._connection.send(LogLine(level=record.levelno, text=self.format(record)))


def run_engine(connection: Connection, spec: EngineSpec) -> None:
    """Serve one parent over `connection`; the process ends when the parent does, however that happens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    logging.getLogger().addHandler(_LogPipe(connection))
    logging.getLogger("rollmill").setLevel(logging.INFO)
    inbox: queue.Queue[Work] = queue.Queue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    try:
        _Server(connection, inbox, spec).serve()
    except RollmillError as error:
        connection.send(Failed(message=str(error), is_input_error=isinstance(error, InputError)))


def _receive(connection: Connection, inbox: queue.Queue[Work]) -> None:
    """Move messages to the inbox; a closed pipe means that the parent is gone, so end at once, even within a step."""
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)


class _Server:
    """Feeds every pending shard into one batch."""

    def __init__(self, connection: Connection, inbox: queue.Queue[Work], spec: EngineSpec) -> None:
        begin = time.monotonic()
        self._spec = spec
        self._policy = load_backend(spec)
        self._scheduler = self._policy.make_batch(spec.max_batch_size)
        logger.info(
            "loaded %s on %s as %s in %.1f s with %s, %d threads, up to %d answers at once",
            spec.model, spec.device, self._policy.dtype, time.monotonic() - begin, spec.backend, spec.num_threads,
            spec.max_batch_size,
        )  # fmt: skip
        self._connection = connection
        self._inbox = inbox
        self._pending: dict[int, _Pending] = {}
        self._reported = (0, 0)
        self._seconds_reported = time.monotonic()
        connection.send(Ready())

    def serve(self) -> None:
        """Answer work for ever."""
        while True:
            self._take_work()
            for group in self._step():
                self._finish(group)
            self._report()

    def _step(self) -> list[FinishedGroup]:
        """Take a step; when memory runs out, once, begin all unfinished groups anew with half the batch."""
        try:
            return self._scheduler.step()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            size = self._scheduler.max_batch_size
        if size < self._spec.max_batch_size or size == 1:
            raise GenerationError(f"out of memory with {size} answers at once: lower engine.max_batch_size")
        logger.warning("out of memory with %d answers at once; going on with %d", size, size // 2)
        self._start_again(size // 2)
        return []

    def _start_again(self, max_batch_size: int) -> None:
        self._scheduler.reset()
        self._reported = (0, 0)
        self._scheduler = self._policy.make_batch(max_batch_size)
        for work_id, pending in self._pending.items():
            self._submit(work_id, set(range(len(pending.groups))) - pending.finished.keys())

    def _submit(self, work_id: int, places: Iterable[int]) -> None:
        groups = self._pending[work_id].groups
        for place in sorted(places):
            self._scheduler.submit(replace(groups[place], key=f"{work_id}/{place}"))

    def _take_work(self) -> None:
        """Take all the work there is; wait for some when nothing is in progress."""
        while not self._scheduler.has_work or not self._inbox.empty():
            work = self._inbox.get()
            self._pending[work.work_id] = _Pending(groups=work.groups)
            self._submit(work.work_id, range(len(work.groups)))
            self._answer_if_done(work.work_id)

    def _finish(self, group: FinishedGroup) -> None:
        work_id, place = map(int, group.key.split("/"))
        pending = self._pending[work_id]
        pending.finished[place] = replace(group, key=pending.groups[place].key)
        self._answer_if_done(work_id)

    def _answer_if_done(self, work_id: int) -> None:
        pending = self._pending[work_id]
        if len(pending.finished) < len(pending.groups):
            return
        del self._pending[work_id]
        self._report(now=True)
        self._connection.send(
            Done(work_id=work_id, groups=tuple(pending.finished[place] for place in range(len(pending.groups))))
        )

    def _report(self, now: bool = False) -> None:
        seconds = time.monotonic()
        if not now and seconds - self._seconds_reported < _SECONDS_BETWEEN_PROGRESS:
            return
        current = (self._scheduler.num_rows_finished, self._scheduler.num_tokens_generated)
        rows, tokens = (new - old for new, old in zip(current, self._reported, strict=True))
        self._reported, self._seconds_reported = current, seconds
        if rows or tokens:
            self._connection.send(Progress(num_rows=rows, num_tokens=tokens))
