"""A Prefect server for the time of one command, where the user runs none of their own.

Prefect can start one by itself, but that one writes to the user's terminal, dies of the user's Ctrl-C before the flow
has ended, and outlives a killed parent. This one logs to a file, is shielded from the terminal, and goes when its
parent goes. It keeps its records in the user's Prefect home, so `prefect server start` shows them afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import httpx
from filelock import FileLock

from rollmill.errors import JobError, RollmillError

PATIENT_PREFECT = {"PREFECT_CLIENT_MAX_RETRIES": "6"}
"""Environment in which a flow waits two minutes for a server that is away: after each try twice as long, 2 s first."""

QUIET_PREFECT = {
    **PATIENT_PREFECT,
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_CLI_COLORS": "false",
}
"""Environment in which Prefect sends nothing to its makers, starts no server of its own beside ours, and leaves the
terminal to us, and has patience; set it before importing prefect. Its log records still reach the server."""

_SECONDS_TO_START = 90.0
_SECONDS_TO_SETTLE = 5.0
_SECONDS_TO_SEND = 30.0


class PrefectServer:
    """A server process that is starting; `wait` returns the address of its API."""

    def __init__(self) -> None:
        from prefect.settings import get_current_settings

        home = Path(get_current_settings().home)
        home.mkdir(parents=True, exist_ok=True)
        # Two servers that meet an empty database at once would both try to make its tables.
        self._starting = FileLock(home / "rollmill-server.lock")
        self._starting.acquire()
        self._log = home / "rollmill-server.log"
        self._port = _free_port()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rollmill.flows.prefect_server", str(self._port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def api_url(self) -> str:
        """The address for PREFECT_API_URL."""
        return f"http://127.0.0.1:{self._port}/api"

    def wait(self) -> str:
        """Return `api_url` once the server answers. Raises RollmillError when it ends or takes too long."""
        deadline = time.monotonic() + _SECONDS_TO_START
        try:
            while not _answers(f"{self.api_url}/health"):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RollmillError(
                        f"Prefect's temporary server did not start; {self._log} says why, and PREFECT_API_URL names "
                        "another server"
                    )
                time.sleep(0.05)
        finally:
            self._starting.release()
        return self.api_url

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Let flows of this process use the server, once it answers."""
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: self.wait()}):
            yield

    def stop(self) -> None:
        """End the server, which first writes what it still holds."""
        self._starting.release()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def prefect_server() -> Iterator[PrefectServer | None]:
    """Start a server that lasts as long as the block, or yield None where the user has named one.

    Raises JobError when the user's own does not answer.
    """
    from prefect.settings import PREFECT_API_URL

    if PREFECT_API_URL.value():
        _expect_an_answer(str(PREFECT_API_URL.value()))
        yield None
        return
    server = PrefectServer()
    try:
        yield server
    finally:
        logging.disable(logging.CRITICAL)  # what a thread that is late would log has nowhere to go any more
        _send_what_is_queued()  # at exit, Prefect would try for a minute to reach a server that has ended
        server.stop()
        logging.disable(logging.NOTSET)


def settle(flow_run_id: UUID) -> None:
    """Wait until the server has written down what happened in a flow run, for a few seconds at most.

    Task states reach a server as events that it records later; one that ends at once loses them.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    _send_what_is_queued()
    deadline = time.monotonic() + _SECONDS_TO_SETTLE
    ended_before = -1
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            task_runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])))
            ended = sum(run.state is not None and run.state.is_final() for run in task_runs)
            if ended == len(task_runs) == ended_before:
                break
            ended_before = ended
            time.sleep(0.3)


def _send_what_is_queued() -> None:
    """Send the events and log records that this process still holds to the server."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    EventsWorker.drain_all(timeout=_SECONDS_TO_SEND)
    APILogWorker.drain_all(timeout=_SECONDS_TO_SEND)


def serve(port: int) -> None:
    """Serve Prefect's API until standard input ends, which is when the parent ends, however that happens."""
    import uvicorn
    from prefect.server.api.server import create_app

    threading.Thread(target=_end_with_parent, daemon=True).start()
    app = create_app(ephemeral=True, final=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=3)


def _expect_an_answer(url: str) -> None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        error = client.api_healthcheck()
    if error is not None:
        raise JobError(f"PREFECT_API_URL names {url}, which does not answer ({error}): start it, or unset the variable")


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    serve(int(sys.argv[1]))
