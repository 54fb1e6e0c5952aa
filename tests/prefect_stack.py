"""A real Prefect server and real workers, each a process of its own that a test may kill and start again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import httpx
import psutil
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import State
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

POOL = "machines"
_SECONDS_AT_MOST = 120.0

_QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


@dataclass(slots=True)
class PrefectStack:
    """A server on a port of its own, whose database stays when it is killed."""

    home: Path
    port: int
    _server: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use this server."""
        return {**os.environ, **_QUIET, "PREFECT_HOME": str(self.home), "PREFECT_API_URL": self.api_url}

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self.home / "server.log").open("ab") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)],
                env={**self.environment, "PREFECT_API_URL": "", "PREFECT_UI_API_URL": self.api_url},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers)

    def kill(self) -> None:
        """End the server as a lost machine does."""
        if self._server is not None:
            kill_tree(self._server)
            self._server = None

    def hold(self) -> None:
        """Let the server take connections and answer none, as behind a network that loses everything."""
        self._signal(signal.SIGSTOP)

    def release(self) -> None:
        """Let a server that was held go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._server is not None
        for process in (psutil.Process(self._server.pid), *psutil.Process(self._server.pid).children(recursive=True)):
            process.send_signal(number)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.api_url}/health", timeout=2.0, trust_env=False).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


@contextmanager
def prefect_stack(folder: Path) -> Iterator[PrefectStack]:
    """Start a server with an empty database and a process work pool; flows of this process use it."""
    folder.mkdir(parents=True)
    stack = PrefectStack(folder, free_port())
    try:
        stack.start()
        with temporary_settings({PREFECT_API_URL: stack.api_url}):
            with get_client(sync_client=True) as client:
                client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
            yield stack
            EventsWorker.drain_all(timeout=10)  # at exit, Prefect would try for a minute to reach a server that is gone
            APILogWorker.drain_all(timeout=10)
    finally:
        stack.kill()


@contextmanager
def worker(
    stack: PrefectStack,
    name: str,
    modules: Path | None = None,
    limit: int = 1,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker that runs so many flow runs at a time; its flows may import, and run, what is in `modules`."""
    path = os.pathsep.join(filter(None, [str(modules or ""), *sys.path]))
    allowed = "" if modules is None else ",".join(found.stem for found in modules.glob("*.py"))
    command = [*("worker", "start", "--pool", POOL, "--type", "process", "--name", name, "--limit", str(limit))]
    with (stack.home / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", *command],
            env={
                **stack.environment,
                "PYTHONPATH": path,
                "PREFECT_WORKER_QUERY_SECONDS": "1",
                "ROLLMILL_ALLOWED_PACKAGES": allowed,
                **(environment or {}),
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                kill_tree(process)
        kill_tree(process)


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all under it at once, as when their machine is lost."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    for one in (psutil.Process(process.pid), *children) if process.poll() is None else children:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
    psutil.wait_procs(children, timeout=10)


def end_of(flow_run: UUID, seconds: float = _SECONDS_AT_MOST) -> State[object]:
    """Wait for a flow run to end, and return its state."""
    states: list[State[object]] = []

    def ended() -> bool:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(flow_run).state
        states[:] = [] if state is None else [state]
        return bool(states) and states[0].is_final()

    wait_until(ended, seconds)
    return states[0]


def wait_until(holds: Callable[[], bool], seconds: float = _SECONDS_AT_MOST) -> None:
    """Return once something holds; fail when it does not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
