"""What `rollmill deploy` lets the server do by itself: it finds the runs that nobody would report."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from flow_builders import job_values, write_job
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.deployments import run_deployment
from prefect.states import Failed, Pending, Running
from prefect_stack import POOL, PrefectStack, end_of, kill_tree, wait_until, worker

from rollmill.errors import RunFailedError
from rollmill.flows.deploy_team import deploy_team
from rollmill.storage.store import RolloutStore
from rollmill.storage.verify import verify_store

SECONDS_SILENT, SECONDS_PENDING = 90, 60


@pytest.fixture
def client(stack: PrefectStack) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client


def deploy(folder: Path, values: dict[str, Any], *names: str, automations: dict[str, Any]) -> None:
    """Deploy a job under some names, each of which may have several runs at once."""
    job = write_job(folder / "job.yaml", values)
    deployments = [{"name": name, "job": job.name, "work_pool": POOL, "concurrency_limit": 9} for name in names]
    settings = {"work_pools": [{"name": POOL}], "deployments": deployments, "automations": automations}
    (folder / "team.yaml").write_text(yaml.safe_dump(settings))
    deploy_team(folder / "team.yaml")


def started(deployment: str) -> UUID:
    created = run_deployment(f"rollout/{deployment}", timeout=0)
    return UUID(str(created.id))  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_that_is_lost_with_its_machine_is_marked_crashed_and_a_retry_goes_on_with_it(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, client: SyncPrefectClient
) -> None:
    store = tmp_path / "store"
    rewards = [{"type": "function", "path": "slow_rewards:score"}]
    values = job_values(policy, prompts, str(store), rewards=rewards, shards__prompts_per_shard=2)
    automations = {
        "zombie_runs": {"seconds_without_heartbeat": SECONDS_SILENT},
        "pending_runs": {"seconds": SECONDS_PENDING},
    }
    deploy(tmp_path, values, "lost", "stuck", automations=automations)
    stuck = client.create_flow_run_from_deployment(client.read_deployment_by_name("rollout/stuck").id).id
    client.set_flow_run_state(stuck, Pending())  # as a worker that then cannot start it
    with worker(stack, "doomed", slow_rewards) as doomed:
        lost = started("lost")
        wait_until(lambda: len(list(store.glob("runs/*/score-*/*.json"))) >= 2)
        kill_tree(doomed)
    assert not client.read_flow_run(lost).state.is_final()  # type: ignore[union-attr]
    assert str(end_of(lost, 240).message).startswith(f"no heartbeat for {SECONDS_SILENT} s")
    assert str(end_of(stuck, 120).message).startswith(f"pending for {SECONDS_PENDING} s")
    assert client.read_flow_run(lost).state.is_crashed()  # type: ignore[union-attr]
    before = len(list(store.glob("data/*/generate/*.parquet")))
    retried = subprocess.run(
        [sys.executable, "-m", "prefect", "flow-run", "retry", str(lost)],
        env={**os.environ, **stack.environment}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert retried.returncode == 0, retried.stdout
    with worker(stack, "next", slow_rewards):
        assert end_of(lost, 180).is_completed()
    assert 0 < before <= len(list(store.glob("data/*/generate/*.parquet"))) <= before + 12
    assert RolloutStore(store).latest().num_rows == 96
    assert verify_store(RolloutStore(store)).problems == ()


@flow
def closes_its_gate() -> None:
    raise RunFailedError("run tiny-v3: 96 of 96 answers could not be scored")


@pytest.mark.slow
def test_a_run_that_publishes_nothing_pauses_its_deployment_and_no_other(
    stack: PrefectStack, policy: Path, prompts: Path, tmp_path: Path, client: SyncPrefectClient
) -> None:
    values = job_values(policy, prompts, str(tmp_path / "store"))
    deploy(tmp_path, values, "broken", "sound", automations={"failed_runs": {}})
    message = closes_its_gate(return_state=True).message
    broken, sound = (client.read_deployment_by_name(f"rollout/{name}").id for name in ("broken", "sound"))

    def end(deployment: UUID, words: str | None) -> None:
        flow_run = client.create_flow_run_from_deployment(deployment).id
        for state in (Pending(), Running(), Failed(message=words)):
            client.set_flow_run_state(flow_run, state)

    for _ in range(2):  # a person switches it on again, and the fault is still there
        end(sound, "Flow run encountered an exception: OSError: not what this is about")
        end(broken, message)
        wait_until(lambda: client.read_deployment(broken).paused, 60)
        client.resume_deployment(broken)
    assert not client.read_deployment(sound).paused
