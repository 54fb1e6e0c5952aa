"""A worker, or the run that it started, is ended by a signal: the run goes on where its shards end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from flow_builders import write_job
from interrupted_runs import NUM_SHARDS, Rows, expect_the_rows, num_scored, rollmill, slow_job
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.flows import EntrypointType
from prefect_stack import POOL, PrefectStack, end_of, wait_until, worker

from rollmill.flows.rollout import rollout
from rollmill.storage.store import RolloutStore


def begun(store: RolloutStore, values: dict[str, object]) -> UUID:
    """Start a job on the pool, and return its flow run once two of its shards are there."""
    deployed = rollout.to_deployment("worked", work_pool_name=POOL, entrypoint_type=EntrypointType.MODULE_PATH).apply()
    assert isinstance(deployed, UUID)
    created = run_deployment(deployed, parameters={"job": values}, timeout=0)
    assert isinstance(created, FlowRun)
    wait_until(lambda: num_scored(store) >= 2)
    return created.id


def under(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def flow_process(machine: subprocess.Popen[bytes]) -> psutil.Process:
    """Return the process of the only flow run that a worker has."""
    [found] = [child for child in under(machine) if "prefect.engine" in " ".join(child.cmdline())]
    return found


def wait_for_the_end_of(processes: list[psutil.Process], seconds: float) -> None:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    assert [process.cmdline() for process in alive] == []


def prefect(stack: PrefectStack, *arguments: str) -> None:
    command = [sys.executable, "-m", "prefect", *arguments]
    done = subprocess.run(command, env=stack.environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def retry(stack: PrefectStack, flow_run: UUID) -> None:
    """Retry a run until it is completed: Prefect's worker tells twice, seconds apart, of a run that was killed, and the
    second time undoes a retry that came between."""
    for _ in range(3):
        prefect(stack, "flow-run", "retry", str(flow_run))
        if end_of(flow_run).is_completed():
            return
    raise AssertionError(end_of(flow_run))


@pytest.mark.slow
@pytest.mark.timeout(230)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_whose_process_is_ended_crashes_and_its_retry_goes_on_with_what_is_missing(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, rows: Rows,
    number: signal.Signals,
) -> None:  # fmt: skip
    store = RolloutStore(tmp_path / "store")
    with worker(stack, "machine", slow_rewards) as machine:
        flow_run = begun(store, slow_job(policy, prompts, store.url))
        process = flow_process(machine)
        engines = process.children(recursive=True)
        process.send_signal(number)
        assert end_of(flow_run).is_crashed()
        wait_for_the_end_of(engines, 5)
        before = num_scored(store)
        assert 2 <= before < NUM_SHARDS
        retry(stack, flow_run)
    expect_the_rows(store, rows)
    assert len(list(Path(store.url).glob("data/*/generate/*.parquet"))) <= NUM_SHARDS + NUM_SHARDS - before


@pytest.mark.slow
@pytest.mark.timeout(230)
def test_what_a_worker_that_is_told_to_end_leaves_another_goes_on_with_once_it_is_marked_crashed(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, rows: Rows
) -> None:
    """Prefect's process worker then kills its runs, and their states stay: see docs/operations.md."""
    store = RolloutStore(tmp_path / "store")
    with worker(stack, "going", slow_rewards) as machine:
        flow_run = begun(store, slow_job(policy, prompts, store.url))
        processes = under(machine)
        machine.send_signal(signal.SIGTERM)
        machine.wait(timeout=60)
        wait_for_the_end_of(processes, 10)
    assert num_scored(store) < NUM_SHARDS
    crashed = '{"state": {"type": "CRASHED", "name": "Crashed"}, "force": true}'
    prefect(stack, "api", "POST", f"/flow_runs/{flow_run}/set_state", "--data", crashed)
    prefect(stack, "flow-run", "retry", str(flow_run))
    with worker(stack, "coming", slow_rewards):
        assert end_of(flow_run).is_completed()
    expect_the_rows(store, rows)


@pytest.mark.slow
@pytest.mark.timeout(230)
def test_a_run_outlives_the_sudden_end_of_its_worker_and_takes_no_harm_from_being_started_again(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, rows: Rows
) -> None:
    store = RolloutStore(tmp_path / "store")
    values = slow_job(policy, prompts, store.url)
    with worker(stack, "killed", slow_rewards) as machine:
        flow_run = begun(store, values)
        processes = under(machine)
        machine.kill()
        machine.wait(timeout=10)
        assert num_scored(store) < NUM_SHARDS
        again = rollmill(stack, "run", str(write_job(tmp_path / "job.yaml", values)), modules=slow_rewards)
        assert end_of(flow_run).is_completed()
        _, err = again.communicate(timeout=120)
        assert again.returncode == 0, err
        wait_for_the_end_of(processes, 30)
    expect_the_rows(store, rows)
