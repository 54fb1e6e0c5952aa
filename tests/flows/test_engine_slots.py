"""Engines and the concurrency limit that they take slots of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from flow_builders import job_of
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.sorting import LogSort
from prefect_stack import wait_until

from rollmill.errors import JobError
from rollmill.flows.engine_slots import check_limit
from rollmill.flows.report import RunReport
from rollmill.flows.rollout import rollout

LIMIT = "test-gpus"
_SECONDS_AT_MOST = 60.0


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    """A client of a server whose limit has two slots, none of them taken."""
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=LIMIT, limit=2))
        yield client
        client.delete_global_concurrency_limit_by_name(LIMIT)


def test_a_run_waits_for_its_slots_holds_them_and_gives_them_back(
    client: SyncPrefectClient, policy: Path, prompts: Path, tmp_path: Path
) -> None:
    job = job_of(policy, prompts, str(tmp_path / "store"), engine__concurrency_limit=LIMIT)
    taken = client.increment_concurrency_slots_with_lease([LIMIT], 2, "concurrency", 60).json()["lease_id"]
    reports: list[RunReport | None] = []
    run = threading.Thread(target=lambda: reports.append(rollout(job)))
    run.start()
    wait_until(
        lambda: any(
            "waiting for 1 slots" in log.message for log in client.read_logs(sort=LogSort.TIMESTAMP_DESC, limit=50)
        )
    )
    assert run.is_alive()
    assert not list(tmp_path.glob("store/data/*/generate/*"))
    client.release_concurrency_slots_with_lease(taken)
    run.join(_SECONDS_AT_MOST)
    assert [report is not None and report.figures.rows for report in reports] == [32]
    assert client.read_global_concurrency_limit_by_name(LIMIT).active_slots == 0


def test_a_run_that_only_scores_waits_for_no_engine(
    client: SyncPrefectClient, policy: Path, prompts: Path, tmp_path: Path
) -> None:
    rollout(job_of(policy, prompts, str(tmp_path / "store")))
    client.increment_concurrency_slots_with_lease([LIMIT], 2, "concurrency", 60)
    rewards = [{"type": "length", "max": 3, "unit": "characters"}]
    again = job_of(policy, prompts, str(tmp_path / "store"), rewards=rewards, engine__concurrency_limit=LIMIT)
    report = rollout(again)
    assert report is not None
    assert (report.new_rows, report.version) == (0, 2)


def test_a_limit_that_is_not_there_or_too_small_is_refused(client: SyncPrefectClient) -> None:
    with pytest.raises(JobError, match="the Prefect server has no concurrency limit nowhere"):
        check_limit("nowhere", 1)
    with pytest.raises(JobError, match="test-gpus has 2 slots, and this run has 3 engines"):
        check_limit(LIMIT, 3)
    check_limit(LIMIT, 2)
