"""The inside of an engine: load the policy once, then answer work for ever, all of it in one batch."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rollmill.errors import GenerationError, InputError, RollmillError
from rollmill.tasks.generation.backend import is_out_of_memory, load_backend
from rollmill.tasks.generation.engine_messages import Done, EngineSpec, Failed, LogLine, Progress, Ready, Send, Work
from rollmill.tasks.generation.policies import check_fingerprint
from rollmill.tasks.generation.types import FinishedGroup, PromptGroup

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_PROGRESS = 0.2


def serve(spec: EngineSpec, inbox: queue.Queue[Work], send: Send) -> None:
    """Answer what comes into `inbox` until the process ends.

    Returns only when the engine cannot go on, having said why; an error that nobody foresaw is said and then raised.
    """
    logging.getLogger().addHandler(_LogSender(send))
    logging.getLogger("rollmill").setLevel(logging.INFO)
    try:
        _Server(spec, inbox, send).serve()
    except RollmillError as error:
        send(Failed(message=str(error), is_input_error=isinstance(error, InputError)))
    except Exception as error:
        send(Failed(message=f"{type(error).__name__}: {' '.join(str(error).split())}", is_input_error=False))
        raise


class _LogSender(logging.Handler):
    """Sends log records to the parent."""

    def __init__(self, send: Send) -> None:
        super().__init__(logging.INFO)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(LogLine(level=record.levelno, text=self.format(record)))


@dataclass(slots=True)
class _Pending:
    """One `Work` that is being answered, the answers by place, and its part of the time in which the engine sampled."""

    groups: tuple[PromptGroup, ...]
    seconds: float = 0.0
    finished: dict[int, FinishedGroup] = field(default_factory=dict)


class _Server:
    """Feeds every pending shard into one batch."""

    def __init__(self, spec: EngineSpec, inbox: queue.Queue[Work], send: Send) -> None:
        begin = time.monotonic()
        self._spec = spec
        if spec.fingerprint is not None:
            check_fingerprint(spec.model, spec.fingerprint)
        self._policy = load_backend(spec)
        self._scheduler = self._policy.make_batch(spec.max_batch_size)
        logger.info(
            "loaded %s on %s as %s in %.1f s with %s, %d threads, up to %d answers at once",
            spec.model, spec.device, self._policy.dtype, time.monotonic() - begin, spec.backend, spec.num_threads,
            spec.max_batch_size,
        )  # fmt: skip
        self._inbox = inbox
        self._send = send
        self._pending: dict[int, _Pending] = {}
        self._reported = (0, 0)
        self._seconds_reported = time.monotonic()
        send(Ready())

    def serve(self) -> None:
        """Answer work for ever."""
        while True:
            self._take_work()
            begin = time.monotonic()
            finished = self._step()
            self._share_out(time.monotonic() - begin)
            for group in finished:
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

    def _share_out(self, seconds: float) -> None:
        """Count a step's time for the works in progress, in equal parts."""
        for pending in self._pending.values():
            pending.seconds += seconds / len(self._pending)

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
        self._send(
            Done(
                work_id=work_id,
                groups=tuple(pending.finished[place] for place in range(len(pending.groups))),
                seconds=pending.seconds,
                device=self._spec.device,
                gpu_share=self._spec.gpu_share,
            )
        )

    def _report(self, now: bool = False) -> None:
        seconds = time.monotonic()
        if not now and seconds - self._seconds_reported < _SECONDS_BETWEEN_PROGRESS:
            return
        current = (self._scheduler.num_rows_finished, self._scheduler.num_tokens_generated)
        rows, tokens = (new - old for new, old in zip(current, self._reported, strict=True))
        self._reported, self._seconds_reported = current, seconds
        if rows or tokens:
            self._send(Progress(num_rows=rows, num_tokens=tokens))
