"""What people and schedules do to a run that goes on: each ends with the rows of a run that nothing disturbed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from uuid import UUID

import psutil
import pytest
import yaml
from flow_builders import write_job
from interrupted_runs import NUM_SHARDS, Rows, expect_the_rows, num_scored, rollmill, slow_job, told_of
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.flows import EntrypointType
from prefect.states import Cancelling
from prefect_stack import POOL, PrefectStack, end_of, wait_until, worker

from rollmill.flows.deploy_team import deploy_team
from rollmill.flows.job import RolloutJob
from rollmill.flows.rollout import rollout
from rollmill.storage.store import RolloutStore


@pytest.mark.slow
def test_a_run_that_is_cancelled_over_the_api_ends_with_its_engine_and_the_next_goes_on(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, rows: Rows
) -> None:
    store = RolloutStore(tmp_path / "store")
    values = slow_job(policy, prompts, store.url)
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
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, rows: Rows
) -> None:
    store = RolloutStore(tmp_path / "store")
    job_file = write_job(tmp_path / "job.yaml", slow_job(policy, prompts, store.url))
    both = [rollmill(stack, "run", str(job_file), modules=slow_rewards) for _ in range(2)]
    said = [process.communicate(timeout=150) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    expect_the_rows(store, rows)
    wait_until(lambda: len(told_of(store)) > 0)
    assert len(told_of(store)) == 1


def runs_of(client: SyncPrefectClient, deployment: str) -> list[FlowRun]:
    """Return a deployment's runs that are no longer scheduled for later."""
    wanted = DeploymentFilter(name=DeploymentFilterName(any_=[deployment]))
    found = client.read_flow_runs(deployment_filter=wanted)
    return [run for run in found if run.state is not None and not run.state.is_scheduled()]


@pytest.mark.slow
@pytest.mark.timeout(230)
def test_a_schedule_that_fires_while_the_last_run_still_goes_starts_no_second_one(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, rows: Rows
) -> None:
    store = RolloutStore(tmp_path / "store")
    write_job(tmp_path / "job.yaml", slow_job(policy, prompts, store.url))
    hasty = {
        "name": "hasty",
        "job": "job.yaml",
        "work_pool": POOL,
        "schedules": [{"interval_seconds": 5}],
    }
    (tmp_path / "team.yaml").write_text(yaml.safe_dump({"work_pools": [{"name": POOL}], "deployments": [hasty]}))
    deploy_team(tmp_path / "team.yaml")
    with worker(stack, "machine", slow_rewards, limit=3), get_client(sync_client=True) as client:
        wait_until(lambda: any(run.state_name == "Cancelled" for run in runs_of(client, "hasty")))
        refused_after = num_scored(store)
        wait_until(lambda: any(run.state_name == "Completed" for run in runs_of(client, "hasty")))
        client.pause_deployment(client.read_deployment_by_name("rollout/hasty").id)
        wait_until(lambda: all(run.state is not None and run.state.is_final() for run in runs_of(client, "hasty")))
        ended = runs_of(client, "hasty")
    assert refused_after < NUM_SHARDS
    assert {run.state_name for run in ended} == {"Completed", "Cancelled"}
    went = [run for run in ended if run.state_name == "Completed"]
    spans = sorted((run.start_time, run.end_time) for run in went if run.start_time and run.end_time)
    assert len(spans) == len(went)
    assert all(later[0] >= earlier[1] for earlier, later in pairwise(spans))
    refused = [run for run in ended if run.state_name == "Cancelled"]
    assert {run.state.message for run in refused if run.state} == {"Deployment concurrency limit reached."}
    assert {run.run_count for run in refused} == {0}
    expect_the_rows(store, rows)
