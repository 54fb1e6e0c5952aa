"""The process that workers are forked from, and the parent's hold on it."""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NoReturn

from rollmill.tasks.rewards.isolation.worker import EXIT_OUT_OF_MEMORY, WorkerSpec, run_worker
from rollmill.tasks.rewards.rating import UnavailableError

_START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {module} import serve; serve(int(sys.argv[2]))"

PRELOADED = {"math": "math_verify", "reasoning_gym": "reasoning_gym"}
"""What a kind of reward takes long to import; the server does it once, and every worker has it."""


class ForkServer:
    """The parent's side. Safe to use from several threads."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._control = ours
        with theirs:
            command = [sys.executable, "-c", _START.format(module=__name__), json.dumps(sys.path), str(theirs.fileno())]
            # A session of its own keeps a terminal's Ctrl-C away; what rewards print goes to the standard error.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()], start_new_session=True
            )
        atexit.register(self.close)

    @property
    def is_alive(self) -> bool:
        """Whether the server's process is there."""
        return self._process.poll() is None

    def fork(self, spec: WorkerSpec) -> tuple[int, socket.socket]:
        """Return the process id of a new worker, and the socket to talk to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self._ask({"fork": spec.to_json()}, [theirs.fileno()])
        return int(pid), ours

    def end(self, pid: int, *, seconds: float) -> str:
        """End a worker and all that it started, unless it does so itself within `seconds`; return how, in words."""
        try:
            return str(self._ask({"end": pid, "seconds": seconds}))
        except UnavailableError:
            return "was ended with the process that it came from"

    def close(self) -> None:
        """End the server and all its workers."""
        self._control.close()
        self._process.wait()

    def _ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> Any:
        try:
            with self._lock:
                _send(self._control, request, descriptors)
                return _receive(self._control)[0]
        except (EOFError, OSError) as error:
            raise UnavailableError(f"the process that scoring processes come from is gone: {error}") from error


def fork_server() -> ForkServer:
    """Return this process's fork server, started at the first call."""
    with _STARTING:
        if not _server_of(os.getpid()).is_alive:
            _server_of.cache_clear()
        return _server_of(os.getpid())


_STARTING = threading.Lock()


@lru_cache(maxsize=1)
def _server_of(process_id: int) -> ForkServer:  # noqa: ARG001 - a forked child has another id, and needs its own
    return ForkServer()


def serve(descriptor: int) -> None:
    """Fork and end workers as the parent asks, until it closes its end; then end them all."""
    from rollmill.tasks.rewards.build_plain import plain_config

    plain_config({"type": "format"})  # what it takes to read a configuration is made once, for all workers
    control = socket.socket(fileno=descriptor)
    workers: set[int] = set()
    try:
        while True:
            request, descriptors = _receive(control)
            _send(control, _answer(request, descriptors, control, workers))
    except (EOFError, OSError):
        for pid in workers:
            _end(pid, 0)


def _answer(
    request: dict[str, Any], descriptors: Sequence[int], control: socket.socket, workers: set[int]
) -> int | str:
    if "end" in request:
        workers.discard(request["end"])
        return _end(request["end"], request["seconds"])
    spec = WorkerSpec.from_json(request["fork"])
    _preload(spec.config["type"])
    with socket.socket(fileno=descriptors[0]) as connection:
        with warnings.catch_warnings():
            # The only other threads are those of numerical libraries, which take care of forks themselves.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            control.close()
            _run(connection, spec)
    workers.add(pid)
    return pid


def _run(connection: socket.socket, spec: WorkerSpec) -> NoReturn:
    status = 1
    try:
        run_worker(connection, spec)
        status = 0
    except OSError:
        status = 2  # the parent is gone, and nobody is left to tell
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end(pid: int, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < deadline:
        time.sleep(0.005)
    # Not reaped yet, so the number cannot belong to another process.
    for end in (os.killpg, os.kill):
        try:
            end(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue  # it has not become a group yet, or has ended
    return _in_words(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _in_words(exit_code: int) -> str:
    if exit_code == EXIT_OUT_OF_MEMORY:
        return "ran out of memory"
    return f"was ended by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit status {exit_code}"


def _preload(kind: str) -> None:
    try:
        importlib.import_module(PRELOADED.get(kind, "json"))
    except ImportError:
        return  # the worker says so itself, with what to do


def _send(control: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    line = json.dumps(message).encode() + b"\n"
    sent = socket.send_fds(control, [line], list(descriptors)) if descriptors else 0
    control.sendall(line[sent:])


def _receive(control: socket.socket) -> tuple[Any, list[int]]:
    line, descriptors = b"", []
    while not line.endswith(b"\n"):
        received, passed, _, _ = socket.recv_fds(control, 65536, 1)
        if not received:
            raise EOFError("the other side is gone")
        line += received
        descriptors += passed
    return json.loads(line), descriptors
