"""The child side of an engine: load the policy once, then answer shards until the parent goes away."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection

from rollmill.errors import InputError, RollmillError
from rollmill.tasks.generation.types import FinishedGroup, PromptGroup

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
class Failed:
    """Child to parent: the engine cannot go on. `is_input_error` says that trying again would not help."""

    message: str
    is_input_error: bool


@dataclass(slots=True)
class _Pending:
    """One `Work` that is being answered: its own keys, and the answers by place."""

    keys: list[str]
    finished: dict[int, FinishedGroup] = field(default_factory=dict)


def run_engine(connection: Connection, spec: EngineSpec) -> None:
    """Serve one parent over `connection`; the process ends when the parent does, however that happens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    inbox: queue.Queue[Work] = queue.Queue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    try:
        _Server(connection, inbox, spec).serve()
    except RollmillError as error:
        connection.send(Failed(message=str(error), is_input_error=isinstance(error, InputError)))
    except MemoryError:
        connection.send(Failed(message="out of memory; lower engine.max_batch_size", is_input_error=False))


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
        import torch

        from rollmill.tasks.generation.policies import load_policy
        from rollmill.tasks.generation.scheduler import InferenceScheduler

        torch.set_num_threads(spec.num_threads)
        model, tokenizer = load_policy(spec.model, dtype=spec.dtype, device=spec.device)
        self._scheduler = InferenceScheduler(
            model, tokenizer, max_batch_size=spec.max_batch_size, max_seq_len=spec.max_seq_len
        )
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
            for group in self._scheduler.step():
                self._finish(group)
            self._report()

    def _take_work(self) -> None:
        """Take all the work there is; wait for some when nothing is in progress."""
        while not self._scheduler.has_work or not self._inbox.empty():
            work = self._inbox.get()
            self._pending[work.work_id] = _Pending(keys=[group.key for group in work.groups])
            for place, group in enumerate(work.groups):
                self._scheduler.submit(replace(group, key=f"{work.work_id}/{place}"))
            self._answer_if_done(work.work_id)

    def _finish(self, group: FinishedGroup) -> None:
        work_id, place = map(int, group.key.split("/"))
        pending = self._pending[work_id]
        pending.finished[place] = replace(group, key=pending.keys[place])
        self._answer_if_done(work_id)

    def _answer_if_done(self, work_id: int) -> None:
        pending = self._pending[work_id]
        if len(pending.finished) < len(pending.keys):
            return
        del self._pending[work_id]
        self._report(now=True)
        self._connection.send(
            Done(work_id=work_id, groups=tuple(pending.finished[place] for place in range(len(pending.keys))))
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
