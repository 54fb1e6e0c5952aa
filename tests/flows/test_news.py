"""What Prefect is told of a published version: once, with its figures, and without holding anything up."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from flow_builders import files_of, job_of, remove_all
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter
from prefect.events.schemas.events import ReceivedEvent
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

from rollmill.flows.news import PUBLISHED, asset_of, event_id_of, resource_of, tell_published
from rollmill.flows.rescore import rescore
from rollmill.flows.rescore_job import RescoreJob
from rollmill.flows.rollout import rollout
from rollmill.storage.log import LogEntry
from rollmill.storage.store import RolloutStore
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.usage import Usage

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import FinishedRun

_SECONDS_TO_ARRIVE = 60.0


def heard(name: str, resource_id: str) -> list[ReceivedEvent]:
    """Return the events of a name and a resource that the server has."""
    wanted = EventFilter(event=EventNameFilter(name=[name]), resource=EventResourceFilter(id=[resource_id]))
    with get_client(sync_client=True) as client:
        return client.read_events(wanted, limit=50).events


def sent_of(version: DatasetVersion) -> list[ReceivedEvent]:
    """Send what this process still holds, and return the events of a version once there are any."""
    deadline = time.monotonic() + _SECONDS_TO_ARRIVE
    EventsWorker.drain_all(timeout=30)
    while not (events := heard(PUBLISHED, resource_of(version)["prefect.resource.id"])):
        assert time.monotonic() < deadline, "the event did not arrive"
        time.sleep(0.2)
    return events


def test_a_published_version_is_told_once_with_the_figures_of_its_report(
    policy: Path, prompts: Path, tmp_path: Path
) -> None:
    job = job_of(policy, prompts, str(tmp_path / "store"))
    report = rollout(job)
    version = RolloutStore(job.store).latest()
    (event,) = sent_of(version)
    assert event.id == event_id_of(version)
    assert event.payload == {
        "store": job.store,
        "version": 1,
        "run_id": "tiny-v3",
        "policy_version": 3,
        "complete": True,
        "shards": 3,
        "rows": 32,
        "groups": 8,
        "mean_reward": pytest.approx(report.figures.mean_reward),
        "failed_rows": 0,
        "unscored_rows": 0,
        "response_tokens": report.figures.response_tokens,
        **report.usage.to_json(),
    }
    assert event.payload["cpu_engine_seconds"] > 0
    assert event.payload["tokens_per_second"] > 0
    assert (event.resource["rollmill.store"], event.resource["rollmill.policy-version"]) == (job.store, "3")
    related = {resource.role: resource.name for resource in event.related}
    assert (related["flow-run"], related["task-run"]) == ("rollout-tiny-v3", "publish")
    assert "prefect.tag.policy-version:3" in {resource.id for resource in event.related}
    (materialized,) = heard("prefect.asset.materialization.succeeded", f"file://{job.store}")
    assert materialized.payload == event.payload
    rollout(job)
    assert [event.id for event in sent_of(version)] == [event_id_of(version)]


def test_a_version_whose_event_was_lost_is_told_by_the_next_start(finished: FinishedRun) -> None:
    version = finished.store.latest()
    rollout(finished.job)
    (event,) = sent_of(version)
    assert event.payload["rows"] == 32


def test_an_old_version_is_no_news(finished: FinishedRun) -> None:
    entry = finished.store.latest().entry
    long_ago = (datetime.now(UTC) - timedelta(days=2)).isoformat()
    old = DatasetVersion(finished.store.objects, replace(entry, created_at=long_ago, operation_id="of the old one"))
    tell_published(old, finished.report.figures, finished.report.usage, datetime.now(UTC))
    EventsWorker.drain_all(timeout=30)
    assert heard(PUBLISHED, resource_of(old)["prefect.resource.id"]) == []


@pytest.mark.parametrize("age", [timedelta(0), timedelta(hours=1)], ids=["just published", "published before"])
def test_a_server_that_does_not_answer_neither_fails_nor_holds_up_who_publishes(
    finished: FinishedRun, age: timedelta
) -> None:
    version = finished.store.latest()
    published_at = datetime.fromisoformat(version.created_at)
    EventsWorker.drain_all(timeout=30)

    @flow
    def telling() -> float:
        begin = time.monotonic()
        with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
            tell_published(version, finished.report.figures, Usage(), published_at + age)
        return time.monotonic() - begin

    assert telling() < 2.0


def test_each_part_and_each_rescoring_is_told_as_the_version_it_is(finished: FinishedRun) -> None:
    remove_all(files_of(finished.folder, "score").values())
    rollout(finished.job.model_copy(update={"publish": finished.job.publish.model_copy(update={"every_shards": 1})}))
    rewards: Any = [{"type": "length", "max": 5}]
    rescore(RescoreJob(store=finished.job.store, rewards=rewards))
    for version in list(finished.store.versions())[1:]:
        (event,) = sent_of(version)
        rewards = [reward for reward in version.read(["reward"])["reward"].to_pylist() if reward is not None]
        assert event.payload["complete"] is version.entry.complete
        assert event.payload["rows"] == version.num_rows == len(rewards)
        assert event.payload["mean_reward"] == pytest.approx(sum(rewards) / len(rewards))


def test_a_store_in_any_folder_is_an_asset_that_prefect_takes(tmp_path: Path) -> None:
    entry = LogEntry(
        number=1, parent=0, previous=0, operation_id="", created_at="", run_id="", stage="", policy_version=0,
        group_size=1, fingerprint="", files=(),
    )  # fmt: skip
    for folder in ("my store", "100% [new]", "x" * 200):
        version = DatasetVersion(RolloutStore(str(tmp_path / folder)).objects, entry)
        assert asset_of(version).key.startswith("file:///")
