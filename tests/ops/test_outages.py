"""Servers that are away while a run goes on: each run ends with the rows of one that nothing disturbed."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import yaml
from fault_proxy import fault_proxy
from flow_builders import write_job
from interrupted_runs import NUM_SHARDS, Rows, expect_the_rows, num_scored, rollmill, slow_job, told_of
from meanwhile import meanwhile
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect_stack import POOL, PrefectStack, end_of, wait_until, worker
from seaweedfs import S3Place

from rollmill.flows.deploy_team import deploy_team
from rollmill.flows.job import RolloutJob
from rollmill.flows.rollout import rollout
from rollmill.storage.store import RolloutStore

SECONDS_OF_OUTAGE = 65.0


@pytest.mark.slow
def test_a_prefect_server_that_is_lost_and_comes_back_costs_a_run_nothing(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, rows: Rows
) -> None:
    store = RolloutStore(tmp_path / "store")
    job_file = write_job(tmp_path / "job.yaml", slow_job(policy, prompts, store.url))
    process = rollmill(stack, "run", str(job_file), modules=slow_rewards)
    wait_until(lambda: num_scored(store) >= 2 or process.poll() is not None)
    stack.kill()
    before = num_scored(store)
    wait_until(lambda: num_scored(store) > before or process.poll() is not None)
    stack.start()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert re.search(r"dataset version +1 of", out)
    expect_the_rows(store, rows)


@pytest.mark.slow
@pytest.mark.timeout(230)
@pytest.mark.parametrize("way", ["refuses connections", "is silent"])
def test_a_run_goes_on_while_the_prefect_server_is_away_for_a_minute_and_then_tells_it_all(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, rows: Rows, way: str
) -> None:
    store = RolloutStore(tmp_path / "store")
    job_file = write_job(tmp_path / "job.yaml", slow_job(policy, prompts, store.url))
    process = rollmill(stack, "run", str(job_file), modules=slow_rewards)
    wait_until(lambda: num_scored(store) >= NUM_SHARDS // 2 or process.poll() is not None)
    before = num_scored(store)
    leave, come_back = {"refuses connections": (stack.kill, stack.start), "is silent": (stack.hold, stack.release)}[way]
    leave()
    time.sleep(SECONDS_OF_OUTAGE)
    during = num_scored(store)
    come_back()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert re.search(r"dataset version +1 of", out)
    assert "Traceback" not in err
    assert before < during == NUM_SHARDS
    expect_the_rows(store, rows)
    wait_until(lambda: len(told_of(store)) == 1, 20)


@pytest.mark.slow
@pytest.mark.timeout(230)
def test_a_worker_and_its_run_outlast_a_prefect_server_that_is_away_for_a_minute(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path, rows: Rows
) -> None:
    store = RolloutStore(tmp_path / "store")
    write_job(tmp_path / "job.yaml", slow_job(policy, prompts, store.url))
    left = {"name": "left", "job": "job.yaml", "work_pool": POOL}
    (tmp_path / "team.yaml").write_text(yaml.safe_dump({"work_pools": [{"name": POOL}], "deployments": [left]}))
    deploy_team(tmp_path / "team.yaml")
    with worker(stack, "machine", slow_rewards) as machine:
        first = run_deployment("rollout/left", timeout=0)
        wait_until(lambda: num_scored(store) >= NUM_SHARDS // 2)
        stack.kill()
        time.sleep(SECONDS_OF_OUTAGE)
        stack.start()
        assert isinstance(first, FlowRun)
        assert end_of(first.id).is_completed()
        assert machine.poll() is None
        second = run_deployment("rollout/left", timeout=0)
        assert isinstance(second, FlowRun)
        assert end_of(second.id, 60).is_completed()
    expect_the_rows(store, rows)


@pytest.mark.slow
@pytest.mark.timeout(230)
@pytest.mark.parametrize("fault", ["cut_request", "no_reply"])
def test_a_run_waits_while_s3_is_away_for_a_minute(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, rows: Rows,
    s3: S3Place, monkeypatch: pytest.MonkeyPatch, fault: str,
) -> None:  # fmt: skip
    direct = RolloutStore(s3.url, s3.storage_options)
    with fault_proxy(s3.endpoint_url) as proxy:
        for name, value in {**s3.environment, "AWS_ENDPOINT_URL": proxy.url}.items():
            monkeypatch.setenv(name, value)
        interrupted: list[int] = []

        def interrupt() -> None:
            wait_until(lambda: num_scored(direct) >= 2)
            for method in ("GET", "PUT", "HEAD", "POST", "DELETE"):
                proxy.always(method, fault)
            interrupted.append(num_scored(direct))
            time.sleep(SECONDS_OF_OUTAGE)
            interrupted.append(num_scored(direct))
            proxy.standing.clear()

        with meanwhile(interrupt):
            report = rollout(RolloutJob.model_validate(slow_job(policy, prompts, s3.url)))
    before, after = interrupted
    assert 2 <= before <= after <= before + 2 < NUM_SHARDS
    assert report is not None
    assert report.figures.unscored == 0
    expect_the_rows(direct, rows)
