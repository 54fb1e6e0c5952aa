"""The parent side of the engines: one long-lived process per device, fed by any number of threads.

An engine is spawned at the first work and loads its policy once. All work in flight on it shares one batch. When its
process dies, everyone who waits on it gets EngineDiedError, and the next work spawns a new one; when the parent dies,
the pipe closes and the engine ends itself.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from types import TracebackType

from rollmill.errors import EngineDiedError, PolicyError
from rollmill.tasks.generation.backend import VLLM
from rollmill.tasks.generation.config import EngineConfig, PolicyConfig
from rollmill.tasks.generation.devices import engine_devices, threads_per_engine
from rollmill.tasks.generation.engine_process import (
    Done,
    EngineSpec,
    Failed,
    LogLine,
    Message,
    Progress,
    Work,
    run_engine,
)
from rollmill.tasks.generation.types import FinishedGroup, PromptGroup
from rollmill.tasks.generation.vllm_environment import vllm_environment

ProgressCallback = Callable[[int, int], None]
"""Called with (rows finished, tokens sampled) since the last call, from the engine's own thread."""

LogCallback = Callable[[int, str], None]
"""Called with (level, text) of each line that an engine logs, from the engine's own thread."""

logger = logging.getLogger(__name__)

_SECONDS_TO_END = 5.0
_SPIN_COUNT, _WAIT_POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"


def start_engines(policy: PolicyConfig, engine: EngineConfig, on_log: LogCallback = logger.log) -> Engines:
    """Return the engines of a job, one per device; use them in a `with` block. None is spawned before it is needed."""
    devices = engine_devices(engine.devices)
    specs = [
        EngineSpec(
            model=policy.model,
            dtype=policy.dtype,
            device=device,
            num_threads=threads_per_engine(len(devices)),
            max_batch_size=engine.max_batch_size,
            max_seq_len=engine.max_seq_len,
            backend=engine.backend,
            memory_share=engine.memory_share,
        )
        for device in devices
    ]
    return Engines(specs, seconds_per_work=engine.seconds_per_shard, on_log=on_log)


class Engines:
    """Spreads work over the engines; every method may be called from several threads at once."""

    def __init__(self, specs: Sequence[EngineSpec], seconds_per_work: float, on_log: LogCallback = logger.log) -> None:
        self._slots: list[_EngineProcess | None] = [None] * len(specs)
        self._specs = list(specs)
        self._seconds_per_work = seconds_per_work
        self._on_log = on_log
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Engines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def num_engines(self) -> int:
        """How many engine processes there are when all are running."""
        return len(self._specs)

    def warm_up(self) -> None:
        """Spawn every engine without waiting for its policy to load."""
        with self._lock:
            for slot in range(len(self._specs)):
                self._running(slot)

    def generate(
        self, groups: Sequence[PromptGroup], on_progress: ProgressCallback | None = None
    ) -> list[FinishedGroup]:
        """Answer `groups` on the engine with the least work, and return the answers in the same order.

        Raises EngineDiedError when the engine ends or does not answer in time (then it is killed), and PolicyError
        when it cannot run the policy at all.
        """
        with self._lock:
            if self._closed:
                raise EngineDiedError("the engines were closed")
            running = [self._running(slot) for slot in range(len(self._specs))]
            engine = min(running, key=lambda process: process.num_pending_groups)
            answer = engine.submit(tuple(groups), on_progress)
        try:
            return list(answer.result(timeout=self._seconds_per_work))
        except FutureTimeoutError:
            engine.kill()
            raise EngineDiedError(
                f"the engine on {engine.spec.device} did not answer within {self._seconds_per_work:g} s and was killed"
            ) from None

    def close(self) -> None:
        """End every engine; whoever still waits gets EngineDiedError."""
        with self._lock:
            self._closed = True
            for process in filter(None, self._slots):
                process.kill()

    def _running(self, slot: int) -> _EngineProcess:
        process = self._slots[slot]
        if process is None or process.is_dead:
            process = self._slots[slot] = _EngineProcess(self._specs[slot], self._on_log)
        return process


def _environment(spec: EngineSpec) -> dict[str, str]:
    """Return the variables that an engine's process starts with, beside those of this process.

    OpenMP's threads spin for some microseconds while they wait for each other, then sleep, unless the user has decided.
    By default they spin for a hundred times longer, and where anything else wants the cores (here: the flow, its
    scorers and its server), that keeps the very thread that they wait for from running; and to sleep at once costs the
    short products of a small model up to half of their speed.
    """
    waiting = {} if {_SPIN_COUNT, _WAIT_POLICY} & os.environ.keys() else {_SPIN_COUNT: "3000"}
    backend = vllm_environment(spec.device, spec.num_threads) if spec.backend == VLLM else {}
    return {**waiting, **backend}


@contextmanager
def _environment_with(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the children that are started inside, and put back what was there before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _EngineProcess:
    """One child process, and the thread that reads its messages."""

    def __init__(self, spec: EngineSpec, on_log: LogCallback) -> None:
        self.spec = spec
        self._on_log = on_log
        self.is_dead = False
        self._work_ids = itertools.count()
        self._pending: dict[int, tuple[int, Future[tuple[FinishedGroup, ...]]]] = {}
        self._listeners: dict[int, ProgressCallback] = {}
        self._failure: Failed | None = None
        self._lock = threading.Lock()
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=run_engine, args=(theirs, spec), daemon=True, name="rollmill-engine")
        with _environment_with(_environment(spec)):
            self._process.start()
        theirs.close()
        threading.Thread(target=self._listen, daemon=True, name=f"rollmill-engine-{self._process.pid}").start()

    @property
    def num_pending_groups(self) -> int:
        """Groups that were submitted and have not come back."""
        with self._lock:
            return sum(count for count, _ in self._pending.values())

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        return self._process.pid

    def submit(
        self, groups: tuple[PromptGroup, ...], on_progress: ProgressCallback | None
    ) -> Future[tuple[FinishedGroup, ...]]:
        """Send work; the future gets the answers, or EngineDiedError."""
        answer: Future[tuple[FinishedGroup, ...]] = Future()
        work_id = next(self._work_ids)
        with self._lock:
            if self.is_dead:
                raise self._error()
            self._pending[work_id] = (len(groups), answer)
            if on_progress is not None:
                self._listeners[work_id] = on_progress
        try:
            self._connection.send(Work(work_id=work_id, groups=groups))
        except OSError:
            self._end()
        return answer

    def kill(self) -> None:
        """End the child at once."""
        self._process.kill()
        self._process.join(_SECONDS_TO_END)

    def _listen(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                break
            self._handle(message)
        self._process.join(_SECONDS_TO_END)
        self._end()

    def _handle(self, message: Message) -> None:
        if isinstance(message, Failed):
            self._failure = message
        elif isinstance(message, LogLine):
            self._on_log(message.level, f"engine {self.spec.device} (pid {self.pid}): {message.text}")
        elif isinstance(message, Progress):
            with self._lock:
                listeners = list(self._listeners.values())
            if listeners:  # all work shares the batch, so one listener speaks for the engine
                listeners[0](message.num_rows, message.num_tokens)
        elif isinstance(message, Done):
            with self._lock:
                _, answer = self._pending.pop(message.work_id)
                self._listeners.pop(message.work_id, None)
            answer.set_result(message.groups)

    def _end(self) -> None:
        with self._lock:
            self.is_dead = True
            waiting = [answer for _, answer in self._pending.values()]
            self._pending.clear()
            self._listeners.clear()
        for answer in waiting:
            answer.set_exception(self._error())

    def _error(self) -> EngineDiedError | PolicyError:
        if self._failure is not None and self._failure.is_input_error:
            return PolicyError(self._failure.message)
        if self._failure is not None:
            return EngineDiedError(f"the engine on {self.spec.device} stopped: {self._failure.message}")
        return EngineDiedError(
            f"the engine on {self.spec.device} (pid {self.pid}) ended with exit code {self._process.exitcode}"
        )
