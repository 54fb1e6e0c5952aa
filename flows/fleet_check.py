"""What is refused of a job that a fleet shall share, before anything starts."""

from __future__ import annotations

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import PREFECT_API_URL

from rollmill.errors import JobError
from rollmill.flows.job import RolloutJob


def check_fleet(job: RolloutJob) -> None:
    """Raise JobError when the job names a fleet whose deployment is not there, or could not run all of it at once."""
    name = job.fleet.deployment
    if job.fleet.size == 1 or name is None:
        return
    if not PREFECT_API_URL.value():
        raise JobError(
            "fleet: the runs that share the work need a Prefect server with workers: PREFECT_API_URL must name it"
        )
    deployment = _read(name)
    if "share" not in (deployment.parameter_openapi_schema or {}).get("properties", {}):
        raise JobError(f"fleet.deployment: {name} is no deployment of the flow rollout, whose runs can share the work")
    limit = deployment.global_concurrency_limit
    if limit is not None and limit.limit < job.fleet.size:
        raise JobError(
            f"fleet.size is {job.fleet.size}, and {name} lets {limit.limit} of its runs go at once: raise its "
            "concurrency limit, or make the fleet smaller"
        )


def _read(name: str) -> DeploymentResponse:
    try:
        with get_client(sync_client=True) as client:
            return client.read_deployment_by_name(name)
    except ObjectNotFound as error:
        raise JobError(f"fleet.deployment: there is no deployment {name} on the Prefect server; deploy it") from error
    except (httpx.HTTPError, PrefectException) as error:
        raise JobError(f"fleet.deployment: {name} cannot be read from the Prefect server: {error}") from error
