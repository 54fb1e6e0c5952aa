"""`rollmill deploy` on a real Prefect server: what the file says is there, once, and stays as people left it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from flow_builders import job_values, write_job
from prefect.blocks.notifications import SlackWebhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.responses import DeploymentResponse, SetStateStatus
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Completed, Pending, Running

from rollmill.errors import JobError
from rollmill.flows.deploy_team import deploy_team
from rollmill.flows.rejection_sampling_job import RejectionSamplingJob

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def job(policy: Path, prompts: Path, tmp_path: Path) -> Path:
    """A job with a training set, whose places are named from the root."""
    values = job_values(policy, prompts, str(tmp_path / "store"))
    export = {"format": "sft", "out": str(tmp_path / "set"), "selection": {"min_reward": 1}}
    return write_job(tmp_path / "job.yaml", {**values, "export": export})


def settings_of(job: Path, name: str, **more: Any) -> dict[str, Any]:
    """Return settings with one of everything, under names of their own."""
    return {
        "work_pools": [
            {"name": f"{name}-pool", "queues": [{"name": "urgent"}, {"name": "nightly", "concurrency_limit": 1}]}
        ],
        "concurrency_limits": [{"name": f"{name}-gpus", "limit": 2}],
        "deployments": [
            {
                "name": name,
                "job": job.name,
                "work_pool": f"{name}-pool",
                "work_queue": "nightly",
                "schedules": [{"cron": "0 2 * * *", "timezone": "Europe/Berlin"}, {"interval_seconds": 3600}],
            }
        ],
        "automations": {"zombie_runs": {}, "pending_runs": {}, "failed_runs": {}},
        **more,
    }


def write(folder: Path, settings: dict[str, Any]) -> Path:
    path = folder / "team.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def actions(changes: Any) -> list[str]:
    return [change.action for change in changes]


def deployed(client: SyncPrefectClient, name: str) -> DeploymentResponse:
    return client.read_deployment_by_name(f"rejection-sampling/{name}")


def test_everything_is_made_once_and_the_second_time_nothing_changes(
    job: Path, client: SyncPrefectClient, tmp_path: Path
) -> None:
    path = write(tmp_path, settings_of(job, "once"))
    planned = deploy_team(path, dry_run=True)
    assert "once" not in {deployment.name for deployment in client.read_deployments()}
    made = deploy_team(path)
    assert planned == made
    assert [(change.kind, change.name, change.action) for change in made[:5]] == [
        ("work pool", "once-pool", "make"),
        ("work queue", "once-pool/urgent", "make"),
        ("work queue", "once-pool/nightly", "make"),
        ("concurrency limit", "once-gpus", "make"),
        ("deployment", "rejection-sampling/once", "make"),
    ]
    updated = deployed(client, "once").updated
    assert set(actions(deploy_team(path))) == {"keep"}
    assert deployed(client, "once").updated == updated
    assert set(actions(deploy_team(path, dry_run=True))) == {"keep"}


def test_a_deployment_is_the_job_with_its_schedules_limit_and_tags(
    job: Path, policy: Path, prompts: Path, client: SyncPrefectClient, tmp_path: Path
) -> None:
    deploy_team(write(tmp_path, settings_of(job, "whole")))
    found = deployed(client, "whole")
    assert found.entrypoint == "rollmill.flows.rejection_sampling.rejection_sampling"
    assert RejectionSamplingJob.model_validate(found.parameters["job"]).export.out == str(tmp_path / "set")
    assert set(found.tags) == {"rollmill", f"policy:{policy}", f"dataset:{prompts}"}
    assert {schedule.schedule.timezone for schedule in found.schedules} == {"Europe/Berlin", "UTC"}
    assert found.global_concurrency_limit is not None
    assert found.global_concurrency_limit.limit == 1
    assert (found.work_pool_name, found.work_queue_name) == ("whole-pool", "nightly")
    assert found.job_variables["env"] == {
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_CLIENT_MAX_RETRIES": "6",
    }
    assert "group_size" in json.dumps(found.parameter_openapi_schema)


def test_only_what_differs_is_changed_and_the_deployment_keeps_its_id(
    job: Path, client: SyncPrefectClient, tmp_path: Path
) -> None:
    settings = settings_of(job, "differs")
    deploy_team(write(tmp_path, settings))
    before = deployed(client, "differs").id
    settings["concurrency_limits"][0]["limit"] = 4
    settings["work_pools"][0]["queues"][1]["concurrency_limit"] = None
    settings["deployments"][0] |= {"changes": ["sampling.group_size=2"], "tags": ["team:math"]}
    settings["automations"]["zombie_runs"] = {"seconds_without_heartbeat": 120}
    changes = deploy_team(write(tmp_path, settings))
    assert {change.name: change.fields for change in changes if change.action == "change"} == {
        "differs-gpus": ("limit",),
        "differs-pool/nightly": ("concurrency_limit",),
        "rejection-sampling/differs": ("parameters", "tags"),
        "rollmill: runs without heartbeat": ("description", "trigger", "actions"),
    }
    assert deployed(client, "differs").id == before
    assert deployed(client, "differs").parameters["job"]["sampling"]["group_size"] == 2
    assert set(actions(deploy_team(write(tmp_path, settings)))) == {"keep"}


def test_what_a_person_paused_stays_paused(job: Path, client: SyncPrefectClient, tmp_path: Path) -> None:
    settings = settings_of(job, "paused")
    deploy_team(write(tmp_path, settings))
    found = deployed(client, "paused")
    client.update_deployment(found.id, DeploymentUpdate(paused=True))
    cron = next(schedule for schedule in found.schedules if hasattr(schedule.schedule, "cron"))
    client.update_deployment_schedule(found.id, cron.id, active=False)
    automation = client.read_automations_by_name("rollmill: runs pending too long")[0]
    client.pause_automation(automation.id)
    settings["deployments"][0]["tags"] = ["team:math"]
    settings["automations"]["pending_runs"] = {"seconds": 60}
    deploy_team(write(tmp_path, settings))
    found = deployed(client, "paused")
    assert found.paused
    assert {hasattr(schedule.schedule, "cron"): schedule.active for schedule in found.schedules} == {
        True: False,
        False: True,
    }
    assert not client.read_automations_by_name("rollmill: runs pending too long")[0].enabled


def test_a_run_that_is_due_while_the_last_one_goes_is_cancelled(
    job: Path, client: SyncPrefectClient, tmp_path: Path
) -> None:
    deploy_team(write(tmp_path, settings_of(job, "busy")))
    deployment = deployed(client, "busy")
    first, second = (client.create_flow_run_from_deployment(deployment.id) for _ in range(2))
    for state in (Pending(), Running()):  # what a worker and then the run report
        assert client.set_flow_run_state(first.id, state).status == SetStateStatus.ACCEPT
    refused = client.set_flow_run_state(second.id, Pending())
    assert refused.state is not None
    assert refused.state.is_cancelled()
    client.set_flow_run_state(first.id, Completed())
    third = client.create_flow_run_from_deployment(deployment.id)
    assert client.set_flow_run_state(third.id, Pending()).status == SetStateStatus.ACCEPT


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what sends Prefect's notifications, as it is imported
def test_each_automation_tells_the_block_that_is_to_be_notified(
    job: Path, client: SyncPrefectClient, tmp_path: Path
) -> None:
    SlackWebhook(url="https://hooks.slack.example/services/x").save("on-call")
    automations = {"zombie_runs": {}, "failed_runs": {"pause": False}, "notify": "slack-webhook/on-call"}
    path = write(tmp_path, settings_of(job, "told", automations=automations))
    deploy_team(path)
    found = {
        name: [action.type for action in client.read_automations_by_name(f"rollmill: {name}")[0].actions]
        for name in ("runs without heartbeat", "runs that end without publishing")
    }
    assert found == {
        "runs without heartbeat": ["change-flow-run-state", "send-notification"],
        "runs that end without publishing": ["send-notification"],
    }
    assert set(actions(deploy_team(path))) == {"keep"}
    untold = settings_of(job, "told", automations={"failed_runs": {"pause": True}})
    deploy_team(write(tmp_path, untold))
    (action,) = client.read_automations_by_name("rollmill: runs that end without publishing")[0].actions
    assert action.type == "pause-deployment"
    assert set(actions(deploy_team(write(tmp_path, untold)))) == {"keep"}


def test_a_deployment_follows_the_policy_that_it_names(job: Path, client: SyncPrefectClient, tmp_path: Path) -> None:
    settings = settings_of(job, "follower", automations={})
    settings["deployments"][0] |= {"follows": "arithmetic", "when_full": "enqueue"}
    path = write(tmp_path, settings)
    assert deploy_team(path, dry_run=True)[-1] == deploy_team(path)[-1]
    (automation,) = client.read_automations_by_name("rejection-sampling/follower follows arithmetic")
    assert set(actions(deploy_team(path))) == {"keep"}
    settings["deployments"][0]["changes"] = ["sampling.group_size=2"]
    changed = deploy_team(write(tmp_path, settings))
    assert [change.action for change in changed] == [*["keep"] * 4, "change", "change"]
    assert client.read_automations_by_name(automation.name)[0].actions != automation.actions


@pytest.mark.parametrize(
    ("section", "values", "line"),
    [
        ("deployments", [{"name": "a", "job": "job.yaml", "work_pool": "none"}], "none is none of the work pools"),
        ("deployments", [{"name": "a", "job": "job.yaml", "work_pool": "wrong-pool", "work_queue": "x"}], "no queue x"),
        ("deployments", [{"name": "a", "job": "gone.yaml", "work_pool": "wrong-pool"}], "there is no such job file"),
        ("concurrency_limits", [{"name": "a", "limit": 1}, {"name": "a", "limit": 2}], "a occurs twice"),
        ("automations", {"zombies": {}}, "automations.zombies is an unknown key; did you mean zombie_runs?"),
        ("automations", {"zombie_runs": {"seconds_without_heartbeat": 5}}, "must be at least 90, got 5"),
        ("automations", {"failed_runs": {"pause": False}}, "does nothing unless notify names a block"),
        ("automations", {"notify": "slack-webhook/nobody"}, "the Prefect server has no block slack-webhook/nobody"),
    ],
)
def test_wrong_settings_are_one_line_and_nothing_is_made(
    job: Path, client: SyncPrefectClient, tmp_path: Path, section: str, values: Any, line: str
) -> None:
    path = write(tmp_path, settings_of(job, "wrong", **{section: values}))
    with pytest.raises(JobError) as refused:
        deploy_team(path)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "wrong-pool" not in {pool.name for pool in client.read_work_pools()}


def test_a_schedule_that_is_none_is_refused_by_its_place(job: Path, tmp_path: Path) -> None:
    settings = settings_of(job, "never")
    settings["deployments"][0]["schedules"] = [{"cron": "at night"}]
    with pytest.raises(JobError, match=r"deployments\.0\.schedules\.0"):
        deploy_team(write(tmp_path, settings))


def test_a_job_whose_results_would_be_removed_with_the_run_is_refused(job: Path, tmp_path: Path) -> None:
    settings = settings_of(job, "lost")
    settings["deployments"][0]["changes"] = ["store=./rollouts"]
    with pytest.raises(JobError, match=r"deployment lost: store is \./rollouts, within a working folder"):
        deploy_team(write(tmp_path, settings))
    settings["deployments"][0]["job_variables"] = {"working_dir": str(tmp_path)}
    assert set(actions(deploy_team(write(tmp_path, settings), dry_run=True))) <= {"make", "keep", "change"}


def test_a_pool_of_another_type_is_refused(job: Path, tmp_path: Path) -> None:
    settings = settings_of(job, "typed")
    deploy_team(write(tmp_path, settings))
    settings["work_pools"][0]["type"] = "kubernetes"
    with pytest.raises(JobError, match="typed-pool is there with the type process, which cannot become kubernetes"):
        deploy_team(write(tmp_path, settings), dry_run=True)


def test_without_a_server_the_command_says_so_in_one_line(job: Path, tmp_path: Path) -> None:
    path = write(tmp_path, settings_of(job, "alone"))
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 5}),
        pytest.raises(JobError, match=r"PREFECT_API_URL names http://127\.0\.0\.1:9/api, which does not answer"),
    ):
        deploy_team(path)
    with (
        temporary_settings(restore_defaults={PREFECT_API_URL}),
        pytest.raises(JobError, match="PREFECT_API_URL must name one"),
    ):
        deploy_team(path)


def test_the_shipped_settings_deploy_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ROOT / "deployments" / "team.yaml"
    ended = subprocess.run(
        [sys.executable, "-m", "rollmill.cli", "deploy", str(settings)],
        env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())},
        cwd=tmp_path, timeout=120, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "rejection-sampling/nightly-sums" in ended.stdout
    monkeypatch.chdir(tmp_path)
    assert [change for change in deploy_team(settings) if change.action != "keep"] == []
