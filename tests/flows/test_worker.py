"""A real Prefect worker: jobs that reach it over the API run only the code that it allows."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.flows import EntrypointType
from prefect.settings import PREFECT_API_URL

from rollmill.flows.rollout import rollout

if TYPE_CHECKING:
    from conftest import FinishedRun

POOL = "machines"
_SECONDS_AT_MOST = 150.0


@contextmanager
def worker(folder: Path, allowed: str) -> Iterator[None]:
    """Let a process worker take the pool's flow runs, with modules of its own in `folder`."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", "one"],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "PREFECT_API_URL": str(PREFECT_API_URL.value()),
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "ROLLMILL_ALLOWED_PACKAGES": allowed,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def asked_over_the_api(finished: FinishedRun, path: str) -> UUID:
    """Ask the pool to score a finished run by a function, and return the flow run's id."""
    deployment = rollout.to_deployment("worked", work_pool_name=POOL, entrypoint_type=EntrypointType.MODULE_PATH)
    deployment_id = deployment.apply()
    assert isinstance(deployment_id, UUID)
    job = {**finished.job.model_dump(mode="json"), "rewards": [{"type": "function", "path": path}]}
    created = run_deployment(deployment_id, parameters={"job": job}, timeout=0)
    assert not asyncio.iscoroutine(created)
    assert isinstance(created, FlowRun)
    return created.id


def end_of(*flow_runs: UUID) -> list[State[Any]]:
    """Wait for flow runs and return the states that they ended in."""
    deadline = time.monotonic() + _SECONDS_AT_MOST
    with get_client(sync_client=True) as client:
        while True:
            states = [client.read_flow_run(flow_run).state for flow_run in flow_runs]
            ended = [state for state in states if state is not None and state.is_final()]
            if len(ended) == len(flow_runs):
                return ended
            assert time.monotonic() < deadline, states
            time.sleep(0.2)


@pytest.fixture
def pool() -> None:
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"), overwrite=True)


def test_a_worker_runs_the_functions_that_it_allows_and_refuses_all_others(
    finished: FinishedRun, pool: None, tmp_path: Path
) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    for package in ("allowed", "others"):
        (folder / f"{package}_rewards.py").write_text(
            f"import pathlib\npathlib.Path({str(tmp_path / package)!r}).touch()\n"
            "def score(prompts, completions, **columns):\n    return [0.25 for _ in completions]\n"
        )
    with worker(folder, allowed="allowed_rewards"):
        refused, ran = end_of(
            asked_over_the_api(finished, "others_rewards:score"), asked_over_the_api(finished, "allowed_rewards:score")
        )
    assert refused.is_failed()
    assert "rewards[0].path: others_rewards:score may not be run by jobs that come over the API" in str(refused.message)
    assert "allows the packages allowed_rewards" in str(refused.message)
    assert not (tmp_path / "others").exists()
    assert ran.is_completed(), ran.message
    assert (tmp_path / "allowed").exists()
    assert [version.number for version in finished.store.versions()] == [1, 2]
    assert set(finished.store.latest().read(["reward"])["reward"].to_pylist()) == {0.25}
