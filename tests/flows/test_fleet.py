"""A run that is shared: how it is dealt out, what a share makes, and a parent that is left alone with all of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flow_builders import answers, files_of, job_of, job_values
from hypothesis import given
from hypothesis import strategies as st
from prefect import Flow, flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.flows import EntrypointType
from prefect.settings import PREFECT_API_URL, temporary_settings

from rollmill.errors import JobError
from rollmill.flows.fleet import member_parameters, name_of, shares
from rollmill.flows.fleet_check import check_fleet
from rollmill.flows.job import FleetConfig, RolloutJob, Share
from rollmill.flows.job_file import check_job
from rollmill.flows.rejection_sampling_job import RejectionSamplingJob
from rollmill.flows.rollout import rollout
from rollmill.storage.store import RolloutStore

if TYPE_CHECKING:
    from conftest import FinishedRun

POOL = "fleet"


@given(st.sets(st.integers(0, 400), min_size=1), st.integers(1, 20))
def test_every_missing_shard_is_in_one_share_and_shares_are_alike(missing: set[int], size: int) -> None:
    dealt = shares(sorted(missing), size)
    assert sorted(shard for share in dealt for shard in share.shards) == sorted(missing)
    assert len(dealt) == min(size, len(missing))
    assert max(len(share.shards) for share in dealt) - min(len(share.shards) for share in dealt) <= 1
    assert [(share.index, share.of) for share in dealt] == [(place + 1, len(dealt)) for place in range(len(dealt))]


@pytest.mark.parametrize("export", [{}, {"export": {"format": "sft", "out": "set"}}], ids=["rollouts", "training set"])
def test_a_member_gets_the_job_of_the_same_run_and_nothing_that_its_parent_does(export: dict[str, Any]) -> None:
    values = job_values(
        Path("policy"), Path("p.jsonl"), "s", fleet={"size": 2, "deployment": "rollout/member"},
        publish={"every_shards": 1}, report={"page": "page.html"}, **export,
    )  # fmt: skip
    job = check_job(values, "job")
    parameters = member_parameters(job, Share(index=1, of=2, shards=[0, 2]))
    member = RolloutJob.model_validate(parameters["job"])
    assert (type(job) is RejectionSamplingJob, type(member)) == (bool(export), RolloutJob)
    assert (member.run_id, member.fleet.size, member.publish.every_shards, member.report.page) == (
        "tiny-v3", 1, None, None,
    )  # fmt: skip
    for field in ("store", "policy", "prompts", "sampling", "rewards", "engine", "shards"):
        assert getattr(member, field) == getattr(job, field)
    assert Share.model_validate(parameters["share"]).shards == [0, 2]


def test_a_fleet_names_its_deployment() -> None:
    values = job_values(Path("policy"), Path("p.jsonl"), "s", fleet={"size": 2})
    with pytest.raises(JobError, match="fleet: name the deployment whose runs share the work"):
        check_job(values, "job.yaml")


@flow
def other(job: str) -> None:
    """A flow that knows of no shares."""


def deployed(of: Flow[..., Any], name: str, **options: Any) -> None:
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"), overwrite=True)
    of.to_deployment(name, work_pool_name=POOL, entrypoint_type=EntrypointType.MODULE_PATH, **options).apply()


@pytest.mark.parametrize(
    ("size", "deployment", "message"),
    [
        (2, "rollout/nowhere", "there is no deployment rollout/nowhere"),
        (2, "other/other", "other/other is no deployment of the flow rollout"),
        (3, "rollout/narrow", r"fleet\.size is 3, and rollout/narrow lets 2 of its runs go at once"),
    ],
)
def test_a_deployment_that_cannot_run_the_fleet_is_refused(
    size: int, deployment: str, message: str, finished: FinishedRun
) -> None:
    deployed(other, "other")
    deployed(rollout, "narrow", concurrency_limit=2)
    job = finished.job.model_copy(update={"fleet": FleetConfig(size=size, deployment=deployment)})
    with pytest.raises(JobError, match=message):
        check_fleet(job)
    with temporary_settings(restore_defaults={PREFECT_API_URL}), pytest.raises(JobError, match="PREFECT_API_URL"):
        check_fleet(job)


def test_a_share_makes_its_shards_alone_and_the_run_then_only_the_others(
    policy: Path, prompts: Path, tmp_path: Path, unbroken: FinishedRun
) -> None:
    job = job_of(policy, prompts, str(tmp_path / "store"))
    share = Share(index=2, of=2, shards=[1])
    state = rollout(job, share, return_state=True)
    assert state.is_completed()
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(state.state_details.flow_run_id).name == name_of(job, share)
    folder = tmp_path / "store"
    assert set(files_of(folder, "score")) == set(files_of(folder, "generate")) == {1}
    assert not (folder / "log").exists()
    assert rollout(job, Share(index=1, of=1, shards=[1])) is None
    report = rollout(job)
    assert report is not None
    assert report.new_rows == 20
    assert report.usage.tokens == unbroken.report.usage.tokens > report.new_tokens
    assert answers(RolloutStore(job.store)) == answers(unbroken.store)


def test_a_share_of_shards_that_the_plan_lacks_is_refused(finished: FinishedRun) -> None:
    with pytest.raises(JobError, match=r"share\.shards: run tiny-v3 has 3 shards, and no 3"):
        rollout(finished.job, Share(index=1, of=1, shards=[2, 3]))


def test_a_parent_whose_members_never_begin_makes_everything_itself(
    policy: Path, prompts: Path, tmp_path: Path, unbroken: FinishedRun
) -> None:
    deployed(rollout, "idle")
    fleet = {"size": 2, "deployment": "rollout/idle", "seconds_without_a_shard": 1}
    job = job_of(policy, prompts, str(tmp_path / "store"), fleet=fleet, name="alone")
    report = rollout(job)
    assert report is not None
    assert (report.num_shards, report.new_rows) == (3, 32)
    assert answers(RolloutStore(job.store)) == answers(unbroken.store)
    with get_client(sync_client=True) as client:
        members = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=["fleet:alone-v3"])))
    assert {member.name for member in members} == {f"rollout-alone-v3-share-{index}-of-2" for index in (1, 2)}
    assert all(member.state is not None and member.state.is_cancelled() for member in members)
