"""A trainer announces a policy, and a deployment runs with it: the event, and the automation's parameters."""

from __future__ import annotations

import copy
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from flow_builders import job_values
from prefect.client.orchestration import get_client
from prefect.events.filters import EventFilter, EventNameFilter
from prefect.server.events.actions import RunDeployment
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.utilities.schema_tools.hydration import HydrationContext, hydrate

import rollmill
from rollmill.cli import main
from rollmill.errors import JobError, RollmillError
from rollmill.flows import announcing
from rollmill.flows.announced_policies import ensure_rollout_on_announcement, parameters_of
from rollmill.flows.announcing import ANNOUNCED
from rollmill.flows.job import RolloutJob
from rollmill.flows.rollout import rollout

if TYPE_CHECKING:
    from conftest import FinishedRun


def rendered(parameters: dict[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
    """Render an automation's parameters as Prefect's server does for an event."""
    copied = copy.deepcopy(parameters)
    RunDeployment._upgrade_v1_templates(copied)
    context = {"event": {"payload": payload}}
    return hydrate(copied, HydrationContext(raise_on_error=True, render_jinja=True, jinja_context=context))


def test_an_announcement_reaches_the_server_with_what_a_job_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["rollmill", "announce", "s3://b/step-7", "7", "--name", "sums", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (None, 0)
    said = json.loads(capsys.readouterr().out)
    deadline = time.monotonic() + 60
    with get_client(sync_client=True) as client:
        while not (events := client.read_events(EventFilter(event=EventNameFilter(name=[ANNOUNCED])), 50).events):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    (event,) = [event for event in events if str(event.id) == said["event_id"]]
    assert event.payload == {"name": "sums", "model": "s3://b/step-7", "version": 7}
    assert event.resource.id == "rollmill.policy.sums"


def test_an_announcement_that_no_server_takes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "_MAX_RETRIES", 0)
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(RollmillError, match=r"at http://127\.0\.0\.1:9/api did not take the announcement"),
    ):
        rollmill.announce_policy("policy", 1)
    with (
        temporary_settings(restore_defaults={PREFECT_API_URL}),
        pytest.raises(JobError, match="PREFECT_API_URL must name one"),
    ):
        rollmill.announce_policy("policy", 1)


@pytest.mark.parametrize(("url", "version"), [("", 1), ("policy", -1), ("policy", "1"), ("policy", True)])
def test_what_no_policy_can_be_is_not_announced(url: str, version: Any) -> None:
    with pytest.raises(JobError):
        rollmill.announce_policy(url, version)


@pytest.mark.parametrize("name", ["", "*", "sums*", "!sums", "a b"])
def test_a_name_that_would_match_other_policies_is_refused_on_both_sides(name: str) -> None:
    with pytest.raises(JobError, match="the name of a policy must match"):
        rollmill.announce_policy("policy", 1, name=name)
    with pytest.raises(JobError, match="the name of a policy must match"):
        ensure_rollout_on_announcement("rollout/following", name=name)


def test_a_run_has_the_announced_policy_and_all_else_of_the_deployment_s_job_as_it_is() -> None:
    job = job_values(
        Path("old"), Path("p.jsonl"), "s", rewards=[{"type": "regex", "pattern": "{{ x }}{% if %}"}],
        prompts__system_prompt="Use {{ and }}.", policy__dtype="float32",
    )  # fmt: skip
    model = 'a "b" <c> {{ d }}'
    parameters = parameters_of({"job": job}, "deployment")
    result = rendered(parameters, {"model": model, "version": 12})
    assert result == {"job": {**job, "policy": {"model": model, "version": 12, "dtype": "float32"}}}
    assert RolloutJob.model_validate(result["job"]).resolved_run_id == "tiny-v12"


def test_a_job_with_a_run_id_of_its_own_cannot_follow_a_policy() -> None:
    job = job_values(Path("old"), Path("p.jsonl"), "s", run_id="mine")
    with pytest.raises(JobError, match=r"job\.run_id is mine, so all policies would share one run"):
        parameters_of({"job": job}, "deployment rollout/sums")


def deploy(job: dict[str, Any], name: str) -> UUID:
    found = rollout.to_deployment(name, parameters={"job": job}).apply()
    assert isinstance(found, UUID)
    return found


def test_a_deployment_that_follows_a_policy_has_one_automation_that_is_kept_or_changed(finished: FinishedRun) -> None:
    job = finished.job.model_dump(mode="json", exclude_none=True)
    deploy(job, "following")
    actions = [
        ensure_rollout_on_announcement("rollout/following", name="sums", dry_run=dry_run).action
        for dry_run in (True, False, False)
    ]
    assert actions == ["made", "made", "kept"]
    deployment_id = deploy({**job, "sampling": {**job["sampling"], "seed": 9}}, "following")
    assert ensure_rollout_on_announcement("rollout/following", name="sums").action == "changed"
    with get_client(sync_client=True) as client:
        (automation,) = client.read_automations_by_name("rollout/following follows sums")
    (action,) = automation.actions
    assert (action.type, action.deployment_id) == ("run-deployment", deployment_id)
    ran = rendered(action.parameters or {}, {"model": "new", "version": 4})
    assert (ran["job"]["sampling"]["seed"], ran["job"]["policy"]["model"]) == (9, "new")


@pytest.mark.parametrize("name", ["rollout/absent", "rollout"])
def test_a_deployment_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(JobError, match=name):
        ensure_rollout_on_announcement(name, name="sums")


def test_a_server_that_does_not_answer_is_told_in_one_line() -> None:
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}),
        pytest.raises(JobError, match=r"the Prefect server at http://127\.0\.0\.1:9/api did not take it"),
    ):
        ensure_rollout_on_announcement("rollout/following", name="sums")
