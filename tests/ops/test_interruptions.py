"""What disturbs a run from outside: each ends in a clean store with the rows of a run that nothing disturbed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from fault_proxy import fault_proxy
from flow_builders import answers, job_of, job_values, write_job
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter
from prefect.events.schemas.events import ReceivedEvent
from prefect.flows import EntrypointType
from prefect.states import Cancelling
from prefect_stack import POOL, PrefectStack, end_of, wait_until, worker
from seaweedfs import S3Place

from rollmill.flows.job import RolloutJob
from rollmill.flows.news import PUBLISHED
from rollmill.flows.rollout import rollout
from rollmill.storage.layout import parse_marker_key
from rollmill.storage.store import RolloutStore
from rollmill.storage.verify import verify_store

REWARDS = [{"type": "function", "path": "slow_rewards:score"}]
NUM_SHARDS = 12
SECONDS_OF_OUTAGE = 8.0


@pytest.fixture(scope="session")
def undisturbed(policy: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The rows of a run that nothing disturbed; computed by whoever asks first, on its server."""
    return []


def rows_of(
    undisturbed: list[Any], policy: Path, prompts: Path, folder: Path
) -> dict[tuple[str, int], tuple[list[int], list[float]]]:
    if not undisturbed:
        rollout(job_of(policy, prompts, str(folder / "undisturbed"), shards__prompts_per_shard=24))
        undisturbed.append(answers(RolloutStore(folder / "undisturbed")))
    found: dict[tuple[str, int], tuple[list[int], list[float]]] = undisturbed[0]
    return found


def values_of(policy: Path, prompts: Path, store: str) -> dict[str, Any]:
    return job_values(policy, prompts, store, rewards=REWARDS, shards__prompts_per_shard=24 // NUM_SHARDS)


def num_scored(store: RolloutStore) -> int:
    parsed = filter(None, map(parse_marker_key, store.objects.list("runs/")))
    return sum(stage.startswith("score") for _, stage, _, _ in parsed)


def told_of(store: RolloutStore) -> list[ReceivedEvent]:
    """Return the events of the store's versions that the server has."""
    resource = EventResourceFilter(id_prefix=[f"rollmill.version.{store.url}."])
    wanted = EventFilter(event=EventNameFilter(name=[PUBLISHED]), resource=resource)
    with get_client(sync_client=True) as client:
        return client.read_events(wanted, limit=50).events


def start(stack: PrefectStack, job_file: Path, modules: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rollmill.cli", "run", str(job_file)],
        env={**stack.environment, "PYTHONPATH": ":".join([str(modules), *filter(None, sys.path)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def expect_the_rows(store: RolloutStore, rows: object) -> None:
    assert answers(store) == rows
    assert verify_store(store).problems == ()
    assert len(list(store.versions())) == 1


@pytest.mark.slow
def test_a_prefect_server_that_is_lost_and_comes_back_costs_a_run_nothing(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, undisturbed: list[Any]
) -> None:
    rows = rows_of(undisturbed, policy, prompts, tmp_path)
    store = RolloutStore(tmp_path / "store")
    process = start(stack, write_job(tmp_path / "job.yaml", values_of(policy, prompts, store.url)), slow_rewards)
    wait_until(lambda: num_scored(store) >= 2 or process.poll() is not None)
    stack.kill()
    before = num_scored(store)
    wait_until(lambda: num_scored(store) > before or process.poll() is not None)
    stack.start()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "dataset version  1 of" in out
    expect_the_rows(store, rows)


@pytest.mark.slow
def test_a_run_that_is_cancelled_over_the_api_ends_with_its_engine_and_the_next_goes_on(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, undisturbed: list[Any]
) -> None:
    rows = rows_of(undisturbed, policy, prompts, tmp_path)
    store = RolloutStore(tmp_path / "store")
    values = values_of(policy, prompts, store.url)
    deployed = rollout.to_deployment("cancelled", work_pool_name=POOL, entrypoint_type=EntrypointType.MODULE_PATH)
    deployment_id = deployed.apply()
    assert isinstance(deployment_id, UUID)
    with worker(stack, "machine", slow_rewards) as machine:
        created = run_deployment(deployment_id, parameters={"job": values}, timeout=0)
        assert isinstance(created, FlowRun)
        wait_until(lambda: num_scored(store) >= 2)
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(created.id, Cancelling())
        assert end_of(created.id).is_cancelled()
        children = psutil.Process(machine.pid).children(recursive=True)
        assert [child for child in children if "spawn_main" in " ".join(child.cmdline())] == []
        assert num_scored(store) < NUM_SHARDS
    assert list(store.versions()) == []
    report = rollout(RolloutJob.model_validate(values))
    assert report is not None
    assert 0 < report.new_rows < 96
    expect_the_rows(store, rows)


@pytest.mark.slow
def test_two_who_start_the_same_job_at_once_make_one_version_of_it(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, undisturbed: list[Any]
) -> None:
    rows = rows_of(undisturbed, policy, prompts, tmp_path)
    store = RolloutStore(tmp_path / "store")
    job_file = write_job(tmp_path / "job.yaml", values_of(policy, prompts, store.url))
    both = [start(stack, job_file, slow_rewards) for _ in range(2)]
    said = [process.communicate(timeout=150) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    expect_the_rows(store, rows)
    wait_until(lambda: len(told_of(store)) > 0)
    assert len(told_of(store)) == 1


@pytest.mark.slow
def test_an_s3_store_that_does_not_answer_for_a_while_costs_a_run_only_that_time(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, undisturbed: list[Any],
    s3: S3Place, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    rows = rows_of(undisturbed, policy, prompts, tmp_path)
    direct = RolloutStore(s3.url, s3.storage_options)
    with fault_proxy(s3.endpoint_url) as proxy:
        for name, value in {**s3.environment, "AWS_ENDPOINT_URL": proxy.url}.items():
            monkeypatch.setenv(name, value)
        interrupted: list[int] = []

        def interrupt() -> None:
            wait_until(lambda: num_scored(direct) >= 2)
            for method in ("GET", "PUT", "HEAD", "POST"):
                proxy.always(method, "cut_request")
            interrupted.append(num_scored(direct))
            time.sleep(SECONDS_OF_OUTAGE)
            interrupted.append(num_scored(direct))
            proxy.standing.clear()

        thread = threading.Thread(target=interrupt)
        thread.start()
        report = rollout(RolloutJob.model_validate(values_of(policy, prompts, s3.url)))
        thread.join()
    before, after = interrupted
    assert 2 <= before <= after <= before + 2 < NUM_SHARDS
    assert report is not None
    assert report.figures.unscored == 0
    expect_the_rows(direct, rows)
