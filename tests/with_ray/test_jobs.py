"""Whole jobs with runner ray: the rows of a local run, whatever becomes of nodes, actors and the flow's process."""

from __future__ import annotations

import contextvars
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flow_builders import answers, files_of, job_of, job_values, unloadable_policy, write_job
from meanwhile import meanwhile
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL
from ray_builders import RayNodes, engine_actors, is_running, wait_until

from rollmill.errors import JobError
from rollmill.flows.job import RolloutJob
from rollmill.flows.job_file import load_job
from rollmill.flows.preflight import check_job
from rollmill.flows.rollout import rollout
from rollmill.storage.store import RolloutStore
from rollmill.storage.verify import verify_store

pytestmark = pytest.mark.slow

Rows = dict[tuple[str, int], tuple[list[int], list[float]]]

NUM_SHARDS = 24
LONG = {"sampling__max_tokens": 200, "shards__prompts_per_shard": 1, "engine__devices": "auto"}


def job_on(nodes: RayNodes, policy: Path, prompts: Path, store: Path, **runner: object) -> RolloutJob:
    return job_of(policy, prompts, str(store), **LONG, runner={"type": "ray", "address": nodes.address, **runner})


@pytest.fixture(scope="session")
def local(policy: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """The rows of the same job on this machine alone, never interrupted."""
    store = tmp_path_factory.mktemp("local") / "store"
    rollout(job_of(policy, prompts, str(store), **LONG))
    return answers(RolloutStore(store))


def num_scored(store: Path) -> int:
    return len(list(store.glob("runs/tiny-v3/score-*/*.json")))


def assert_whole(store: Path, rows: Rows) -> None:
    assert answers(RolloutStore(store)) == rows
    assert verify_store(RolloutStore(store)).problems == ()
    assert len(files_of(store, "generate")) == NUM_SHARDS


def log_of(state: Any) -> list[str]:
    APILogWorker.drain_all(timeout=10)
    of_the_run = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        return [log.message for log in client.read_logs(of_the_run, limit=200)]


def test_a_job_on_two_nodes_has_the_rows_of_a_local_one_and_their_engines_logs(
    policy: Path, prompts: Path, nodes: RayNodes, tmp_path: Path, local: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.add()
    nodes.add()
    state = rollout(job_on(nodes, policy, prompts, tmp_path / "store"), return_state=True)
    assert state.is_completed()
    assert_whole(tmp_path / "store", local)
    lines = [line for line in log_of(state) if line.startswith("engine on ")]
    assert len({line.partition(": ")[0] for line in lines if "loaded" in line}) == 2
    assert capsys.readouterr().out == ""
    wait_until(lambda: not engine_actors(), 5, "the actors to end")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_node_that_is_lost_costs_only_its_shards(
    policy: Path, prompts: Path, nodes: RayNodes, tmp_path: Path, local: Rows, capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:  # fmt: skip
    store = tmp_path / "store"
    nodes.add()
    lost = nodes.add()

    def lose_it() -> None:
        wait_until(lambda: num_scored(store) >= 2 and bool(engine_actors(lost)), 100, "both nodes to be at work")
        nodes.end(lost, number)

    with meanwhile(lose_it):
        report = rollout(job_on(nodes, policy, prompts, store))
    assert report.figures.failed == 0
    printed = capsys.readouterr()
    assert re.search(r"shard-\d{5}: the engine on .* ended: .*; trying again", printed.err)
    assert printed.out == ""
    assert_whole(store, local)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_actor_costs_only_its_shards(
    policy: Path, prompts: Path, nodes: RayNodes, tmp_path: Path, local: Rows, capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:  # fmt: skip
    store = tmp_path / "store"
    nodes.add()

    def kill_it() -> None:
        wait_until(lambda: num_scored(store) >= 3, 100, "the first shards")
        for actor in engine_actors():
            actor.send_signal(number)

    with meanwhile(kill_it):
        rollout(job_on(nodes, policy, prompts, store))
    assert re.search(r"shard-\d{5}: the engine on .* ended: .*; trying again", capsys.readouterr().err)
    assert_whole(store, local)


def test_a_node_that_joins_in_mid_run_gets_an_engine(
    policy: Path, prompts: Path, nodes: RayNodes, tmp_path: Path, local: Rows
) -> None:
    store = tmp_path / "store"
    nodes.add()
    job = job_on(nodes, policy, prompts, store, num_engines=2)
    here = contextvars.copy_context()  # with Prefect's settings, which name its server
    with ThreadPoolExecutor(1) as pool:  # Ray adds nodes in the main thread only
        run = pool.submit(here.run, rollout, job, return_state=True)
        wait_until(lambda: num_scored(store) >= 2 or run.done(), 100, "the first shards")
        nodes.add()
        state = run.result(150)
    assert_whole(store, local)
    assert sum("started" in line and line.startswith("engine on ") for line in log_of(state)) == 2


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_leaves_no_actor_and_goes_on_with_what_is_missing(
    policy: Path, prompts: Path, nodes: RayNodes, tmp_path: Path, local: Rows, how: signal.Signals
) -> None:
    nodes.add()
    store = tmp_path / "store"
    runner = {"type": "ray", "address": nodes.address}
    job_file = write_job(tmp_path / "job.yaml", job_values(policy, prompts, str(store), **LONG, runner=runner))
    process = subprocess.Popen(
        [sys.executable, "-m", "rollmill.cli", "run", str(job_file)],
        env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_until(lambda: num_scored(store) >= 3 or process.poll() is not None, 100, "the first shards")
    actors = engine_actors()
    process.send_signal(how)
    process.communicate(timeout=30)
    assert process.returncode == -how
    assert actors
    wait_until(lambda: not any(map(is_running, actors)), 8, "the actors to end")
    before = num_scored(store)
    assert 0 < before < NUM_SHARDS
    rollout(load_job(job_file))
    assert_whole(store, local)


def test_a_job_that_the_cluster_has_no_room_for_is_refused_before_anything_loads(
    prompts: Path, nodes: RayNodes, tmp_path: Path
) -> None:
    job = job_on(nodes, unloadable_policy(tmp_path / "policy"), prompts, tmp_path / "store")
    with pytest.raises(JobError, match=r"none of the 1 nodes of the Ray cluster has 1 GPU and 1 CPU for an engine"):
        check_job(job)
    devices = job.engine.model_copy(update={"devices": "cpu:2"})
    with pytest.raises(JobError, match=r"engine.devices: cpu:2 names devices of one machine"):
        check_job(job.model_copy(update={"engine": devices}))
