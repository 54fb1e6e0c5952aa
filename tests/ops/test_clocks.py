"""Machines whose clocks are wrong: nothing that is stored depends on them, and where S3 does, it is said."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from flow_builders import write_job
from interrupted_runs import Rows, expect_the_rows, rollmill, slow_job, told_of
from other_clocks import clock_off_by
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.flows import EntrypointType
from prefect_stack import POOL, PrefectStack, end_of, wait_until, worker
from seaweedfs import S3Place

from rollmill.flows.rollout import rollout
from rollmill.storage.layout import data_key
from rollmill.storage.store import RolloutStore

AHEAD, BEHIND = timedelta(hours=1), timedelta(hours=-1)


def said(process: subprocess.Popen[str], seconds: float = 150) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


@pytest.mark.slow
def test_a_process_with_another_clock_is_as_wrong_as_these_tests_say() -> None:
    for difference in (AHEAD, BEHIND):
        command = [
            sys.executable,
            "-c",
            "import time, datetime; print(time.time(), datetime.datetime.now().timestamp())",
        ]
        done = subprocess.run(command, env=clock_off_by(difference), capture_output=True, text=True, check=True)
        for shown in done.stdout.split():
            assert abs(float(shown) - time.time() - difference.total_seconds()) < 30


@pytest.mark.slow
@pytest.mark.timeout(230)
def test_two_machines_whose_clocks_are_two_hours_apart_make_one_version_of_the_same_job(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, rows: Rows
) -> None:
    store = RolloutStore(tmp_path / "store")
    job_file = write_job(tmp_path / "job.yaml", slow_job(policy, prompts, store.url))
    both = [
        rollmill(stack, "run", str(job_file), modules=slow_rewards, environment=clock_off_by(difference))
        for difference in (AHEAD, BEHIND)
    ]
    for status, out, err in map(said, both):
        assert status == 0, err
        assert re.search(r"dataset version +1 of", out)
    expect_the_rows(store, rows)
    off = abs(datetime.now(UTC) - datetime.fromisoformat(store.latest().created_at))
    assert timedelta(minutes=50) < off < timedelta(minutes=70)
    wait_until(lambda: len(told_of(store)) > 0)
    assert len(told_of(store)) == 1

    young = data_key("tiny-v3", "generate", 0, "0123456789abcdef")
    store.objects.put(young, b"of a worker that is about to commit it")
    for difference in (timedelta(days=9), timedelta(days=-9)):
        vacuum = rollmill(stack, "vacuum", store.url, "--older-than", "1h", environment=clock_off_by(difference))
        status, out, err = said(vacuum)
        assert status == 0, err
        assert store.objects.size(young) is not None, out
    store.objects.delete(young)
    again = rollmill(stack, "run", str(job_file), modules=slow_rewards, environment=clock_off_by(AHEAD))
    assert said(again)[0] == 0
    expect_the_rows(store, rows)
    assert len(told_of(store)) == 1


@pytest.mark.slow
@pytest.mark.timeout(230)
def test_a_worker_whose_clock_is_an_hour_ahead_makes_the_rows_of_any_other(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, rows: Rows
) -> None:
    store = RolloutStore(tmp_path / "store")
    deployed = rollout.to_deployment("early", work_pool_name=POOL, entrypoint_type=EntrypointType.MODULE_PATH).apply()
    assert isinstance(deployed, UUID)
    with worker(stack, "early", slow_rewards, environment=clock_off_by(AHEAD)):
        values = slow_job(policy, prompts, store.url)
        created = run_deployment(deployed, parameters={"job": values}, timeout=0)
        assert isinstance(created, FlowRun)
        assert end_of(created.id).is_completed()
    expect_the_rows(store, rows)


@pytest.mark.slow
@pytest.mark.timeout(230)
def test_s3_takes_a_clock_that_is_minutes_off_and_an_hour_is_one_clear_line(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, rows: Rows, s3: S3Place
) -> None:
    store = RolloutStore(s3.url, s3.storage_options)
    job_file = write_job(tmp_path / "job.yaml", slow_job(policy, prompts, s3.url))

    def run_with(difference: timedelta) -> subprocess.Popen[str]:
        environment = {**s3.environment, **clock_off_by(difference)}
        return rollmill(stack, "run", str(job_file), modules=slow_rewards, environment=environment)

    for difference, side in ((AHEAD, "ahead of"), (BEHIND, "behind")):
        status, out, err = said(run_with(difference))
        assert (status, out) == (2, "")
        assert err.count("\n") == 1, err
        assert f"this machine's clock is 60 minutes {side} the store's, more than S3 allows; set this machine's" in err
    assert store.objects.list("") == []
    both = [run_with(timedelta(minutes=10)), run_with(timedelta(minutes=-10))]
    for status, _, err in map(said, both):
        assert status == 0, err
    expect_the_rows(store, rows)
