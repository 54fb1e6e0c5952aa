"""A trainer's word that a policy has new weights, as an event that automations turn into rollouts."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.events.schemas.events import Event, Resource
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from rollmill.errors import JobError, RollmillError
from rollmill.flows.job import NAME_PATTERN

ANNOUNCED = "rollmill.policy.announced"
"""The event of new weights."""

DEFAULT_NAME = "policy"
_MAX_RETRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What was announced: weights at `model`, the trainer's number for them, and whose they are."""

    name: str
    model: str
    version: int
    event_id: str

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return asdict(self)


def announce_policy(url: str, version: int, *, name: str = DEFAULT_NAME) -> Announcement:
    """Tell the Prefect server that PREFECT_API_URL names of new weights, and return once it has taken the event.

    `url` is what a job's `policy.model` may be, seen from the workers: a folder that they share, an s3:// folder or a
    hub id; `version` is the trainer's number for these weights. `name` tells the policies of one server apart: a
    deployment follows one name. Announcing the same again starts the same run again, which makes only what is missing.
    Raises JobError for arguments that no policy can have and where no server is named, and RollmillError when the
    server does not take the event.
    """
    if not url.strip():
        raise JobError("a policy is announced by where its weights are, which may not be empty")
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise JobError(f"version must be a whole number of at least 0, got {version!r}")
    payload = {"name": name, "model": url, "version": version}
    event = Event(
        event=ANNOUNCED,
        resource=Resource(
            {
                "prefect.resource.id": resource_id(name),
                "prefect.resource.name": f"{name}, version {version}",
                "rollmill.policy-version": str(version),
            }
        ),
        payload=payload,
    )
    _send(event)
    return Announcement(name=name, model=url, version=version, event_id=str(event.id))


def resource_id(name: str) -> str:
    """Return what the events of a policy are about. Raises JobError for a name that could match others."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise JobError(f"the name of a policy must match {NAME_PATTERN}, got {name!r}")
    return f"rollmill.policy.{name}"


def _send(event: Event) -> None:
    """Hand the event over by a request that is answered, for what is only queued is lost when the trainer is killed."""
    server = PREFECT_API_URL.value()
    if not server:
        raise JobError(
            "a policy is announced to a Prefect server: PREFECT_API_URL must name one, as in http://127.0.0.1:4200/api"
        )
    try:
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: _MAX_RETRIES}), get_client(sync_client=True) as client:
            client.request("POST", "/events", json=[event.model_dump(mode="json")])
    except (httpx.HTTPError, PrefectException) as error:
        raise RollmillError(
            f"the Prefect server at {server} did not take the announcement ({' '.join(str(error).split())}); announce "
            "it again when the server answers"
        ) from error
