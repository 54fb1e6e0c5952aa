"""The automation that runs a deployment for each policy that is announced."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Literal

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.actions import RunDeployment
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import PREFECT_API_URL

from rollmill.errors import JobError
from rollmill.flows.announcing import ANNOUNCED, DEFAULT_NAME, resource_id
from rollmill.flows.deploying import put_automation
from rollmill.flows.job_file import check_job

Action = Literal["made", "changed", "kept"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What was done about an automation."""

    automation: str
    deployment: str
    name: str
    action: Action

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return asdict(self)


def ensure_rollout_on_announcement(deployment: str, *, name: str = DEFAULT_NAME, dry_run: bool = False) -> Followed:
    """Let `deployment`, named flow/deployment, run for each announcement of the policy `name`.

    The run has the deployment's job, with `policy.model` and `policy.version` of the announcement. An automation that
    says this already is kept, one that says something else is changed; one that a person has paused stays paused.
    With `dry_run` nothing is made or changed. Raises JobError when the server, the deployment or its job is not fit.
    """
    title, resource = follower_of(deployment, name), resource_id(name)
    try:
        with get_client(sync_client=True) as client:
            wanted = _automation(title, _read(client, deployment), deployment, resource)
            there = [found for found in client.read_automations_by_name(title) if found.name == title]
            action = _action(there, wanted)
            if not dry_run:
                _bring_about(client, there, wanted)
    except (httpx.HTTPError, PrefectException) as error:
        raise JobError(
            f"{title}: the Prefect server at {PREFECT_API_URL.value()} did not take it: {' '.join(str(error).split())}"
        ) from error
    return Followed(automation=title, deployment=deployment, name=name, action=action)


def follower_of(deployment: str, name: str) -> str:
    """Return what the automation is called that lets a deployment follow a policy."""
    return f"{deployment} follows {name}"


def parameters_of(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a deployment's parameters as an automation's, with the announced policy in place of the job's own.

    Prefect renders every text with `{{` in it, so what the job has of that kind is marked as plain.
    """
    job = check_job(values.get("job") or {}, where)
    if job.run_id is not None:
        raise JobError(
            f"{where}: job.run_id is {job.run_id}, so all policies would share one run; leave it out, and each version "
            "has its own"
        )
    given = {field: _plain(value) for field, value in values["job"].items()}
    policy = {field: _plain(value) for field, value in values["job"]["policy"].items()}
    announced = {"model": _of_event("model"), "version": _of_event("version")}
    others = {parameter: _plain(value) for parameter, value in values.items()}
    return {**others, "job": {**given, "policy": {**policy, **announced}}}


def _of_event(field: str) -> dict[str, Any]:
    """Return what Prefect renders to a field of the event's payload, as the JSON value that it is there."""
    return {
        "__prefect_kind": "json",
        "value": {"__prefect_kind": "jinja", "template": f"{{{{ event.payload.{field} | tojson }}}}"},
    }


def _plain(value: Any) -> Any:
    text = json.dumps(value)
    return {"__prefect_kind": "none", "value": value} if "{{" in text or "{%" in text else value


def _read(client: SyncPrefectClient, deployment: str) -> DeploymentResponse:
    if not PREFECT_API_URL.value():
        raise JobError("automations need a Prefect server: PREFECT_API_URL must name it")
    if deployment.count("/") != 1:
        raise JobError(f"{deployment} must name a deployment as flow/deployment, as in rollout/arithmetic")
    try:
        return client.read_deployment_by_name(deployment)
    except ObjectNotFound as error:
        raise JobError(f"there is no deployment {deployment} on the Prefect server; deploy it first") from error


def _automation(title: str, found: DeploymentResponse, deployment: str, resource: str) -> AutomationCore:
    return AutomationCore(
        name=title,
        description=f"Made by rollmill: each announcement of {resource} starts {deployment}.",
        trigger=EventTrigger(
            expect={ANNOUNCED},
            match=ResourceSpecification({"prefect.resource.id": resource}),
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[
            RunDeployment(
                source="selected",
                deployment_id=found.id,
                parameters=parameters_of(found.parameters, f"deployment {deployment}"),
            )
        ],
    )


def _action(there: list[Automation], wanted: AutomationCore) -> Action:
    if not there:
        return "made"
    return "kept" if len(there) == 1 and _says(there[0]) == _says(wanted) else "changed"


def _bring_about(client: SyncPrefectClient, there: list[Automation], wanted: AutomationCore) -> None:
    if not there:
        client.create_automation(wanted)
        return
    first, *doubled = there
    if _says(first) != _says(wanted):
        put_automation(client, first.id, wanted, first.enabled)
    for one in doubled:  # two who made it at once
        client.delete_automation(one.id)


def _says(automation: AutomationCore) -> dict[str, Any]:
    """Return what an automation does, without what the server adds."""
    trigger = automation.trigger.model_dump(mode="json")
    return {
        "description": automation.description,
        "trigger": {name: sorted(value) if isinstance(value, list) else value for name, value in trigger.items()},
        "actions": [action.model_dump(mode="json") for action in automation.actions],
    }
