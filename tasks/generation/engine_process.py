"""An engine as a process of this machine: how it is started, and the pipe between it and its parent.

When the process dies, the pipe closes and the parent knows; when the parent dies, however that happens, the pipe closes
and the engine ends itself.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from rollmill.tasks.generation.engine_environment import engine_environment
from rollmill.tasks.generation.engine_messages import EngineSpec, Message, Work
from rollmill.tasks.generation.engine_server import serve

_SECONDS_TO_END = 5.0


class EngineProcess:
    """A child process with an engine in it, and the parent's end of the pipe to it."""

    is_placed = True

    def __init__(self, spec: EngineSpec) -> None:
        context = multiprocessing.get_context("spawn")
        self._device = spec.device
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=run_engine, args=(theirs, spec), daemon=True, name="rollmill-engine")
        with _environment_with(engine_environment(spec)):
            self._process.start()
        theirs.close()

    @property
    def name(self) -> str:
        """What log lines and errors call it."""
        return f"engine on {self._device} (pid {self.pid})"

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        return self._process.pid

    def send(self, work: Work) -> None:
        """Send work; raises OSError when the process is gone."""
        self._connection.send(work)

    def receive(self) -> Message:
        """Wait for the next message; raises EOFError or OSError when the process has ended."""
        message: Message = self._connection.recv()
        return message

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join(_SECONDS_TO_END)

    def ending(self) -> str:
        """Return how the process ended."""
        self._process.join(_SECONDS_TO_END)
        return f"ended with exit code {self._process.exitcode}"


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


def run_engine(connection: Connection, spec: EngineSpec) -> None:
    """Serve one parent over `connection`; the process ends when the parent does, however that happens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    inbox: queue.Queue[Work] = queue.Queue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    serve(spec, inbox, connection.send)


def _receive(connection: Connection, inbox: queue.Queue[Work]) -> None:
    """Move messages to the inbox; a closed pipe means that the parent is gone, so end at once, even within a step."""
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)
