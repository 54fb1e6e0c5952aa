"""The server that lasts as long as a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from rollmill.errors import JobError
from rollmill.flows.prefect_server import prefect_server

_START_AND_WAIT = """
import sys
from rollmill.flows.prefect_server import prefect_server
with prefect_server() as server:
    print(server._process.pid, flush=True)
    sys.stdin.read()
"""


def test_no_server_is_started_where_the_user_has_one() -> None:
    with prefect_server() as server:
        assert server is None


def test_a_server_of_the_user_that_does_not_answer_is_refused_by_its_address() -> None:
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}),
        pytest.raises(JobError, match=r"PREFECT_API_URL names http://127\.0\.0\.1:9/api, which does not answer"),
        prefect_server(),
    ):
        pass


def test_a_server_that_is_not_used_is_ended_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    with temporary_settings({"PREFECT_HOME": str(tmp_path_factory.mktemp("home"))}, restore_defaults={PREFECT_API_URL}):
        with prefect_server() as server:
            assert server is not None
            process = psutil.Process(server._process.pid)
        assert not process.is_running()


def test_a_server_ends_when_its_parent_is_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path_factory.mktemp("home"))}
    environment.pop("PREFECT_API_URL", None)
    with subprocess.Popen(
        [sys.executable, "-c", _START_AND_WAIT],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        gone, alive = psutil.wait_procs([server], timeout=30)
    assert (gone, alive) == ([server], [])
