"""Jobs that come over Prefect's API, which may name less than those of the machine's own user."""

from __future__ import annotations

import os
from collections.abc import Sequence

from prefect.context import FlowRunContext

from rollmill.errors import JobError
from rollmill.tasks.generation.runner_config import AUTO, LocalRunner, RayRunner
from rollmill.tasks.rewards.allowed import check_allowed
from rollmill.tasks.rewards.config import RewardConfig

ALLOWED_PACKAGES = "ROLLMILL_ALLOWED_PACKAGES"
ALLOWED_VARIABLES = "ROLLMILL_ALLOWED_VARIABLES"
_STARTED_BY_A_WORKER = "PREFECT__FLOW_RUN_ID"


def check_origin(rewards: Sequence[RewardConfig]) -> None:
    """Raise JobError when a job from the API runs code, or reads a variable, that this worker does not allow.

    The worker's environment says what it allows: ROLLMILL_ALLOWED_PACKAGES and ROLLMILL_ALLOWED_VARIABLES hold names
    with commas between them. A job that a command or a program of this machine passed itself may name anything.
    """
    if came_over_api():
        check_allowed(rewards, packages=_listed(ALLOWED_PACKAGES), variables=_listed(ALLOWED_VARIABLES))


def check_cluster_origin(runner: LocalRunner | RayRunner) -> None:
    """Raise JobError when a job from the API names a cluster: what a driver hears of its cluster, it trusts as code."""
    if isinstance(runner, RayRunner) and runner.address != AUTO and came_over_api():
        raise JobError(
            f"runner.address: a job from the Prefect API may only say auto, got {runner.address}; RAY_ADDRESS in the "
            "worker's environment names its cluster"
        )


def came_over_api() -> bool:
    """Whether this process, or the flow run that it is in, was started by a worker for a deployment."""
    context = FlowRunContext.get()
    flow_run = context and context.flow_run
    return bool(flow_run and flow_run.deployment_id) or _STARTED_BY_A_WORKER in os.environ


def _listed(variable: str) -> list[str]:
    return [name for name in map(str.strip, os.environ.get(variable, "").split(",")) if name]
