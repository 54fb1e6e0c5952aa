"""A job file as a Prefect deployment, as a piece to deploy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule
from prefect.utilities.callables import parameter_schema

from rollmill.errors import JobError
from rollmill.flows.deploy_settings import DeploymentSettings, ScheduleSettings
from rollmill.flows.deploying import Piece, Values
from rollmill.flows.job import RolloutJob
from rollmill.flows.job_file import load_job
from rollmill.flows.prefect_server import PATIENT_PREFECT
from rollmill.flows.rejection_sampling import rejection_sampling
from rollmill.flows.rejection_sampling_job import RejectionSamplingJob
from rollmill.flows.rollout import rollout

TAG = "rollmill"
"""What all runs of our deployments are tagged with; automations know them by it."""

HEARTBEATS = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
"""Environment in which a run tells the server every 30 seconds that it lives."""

_INTERVALS_COUNT_FROM = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class DeploymentPiece(Piece):
    """A deployment; one that is paused stays paused, and so does each of its schedules."""

    client: SyncPrefectClient
    settings: DeploymentSettings
    job: RolloutJob
    kind: ClassVar[str] = "deployment"

    @property
    def flow(self) -> Flow[..., Any]:
        """The flow that runs the job."""
        return rejection_sampling if isinstance(self.job, RejectionSamplingJob) else rollout

    @property
    def name(self) -> str:
        return f"{self.flow.name}/{self.settings.name}"

    def wanted(self) -> Values:
        settings, flow = self.settings, self.flow
        return {
            "entrypoint": f"{flow.fn.__module__}.{flow.fn.__name__}",
            "description": settings.description,
            "parameters": {"job": self.job.model_dump(mode="json", exclude_unset=True)},
            "tags": tags_of(self.job, settings.tags),
            "schedules": _in_order(map(_schedule, settings.schedules)),
            "work_pool_name": settings.work_pool,
            "work_queue_name": settings.work_queue or "default",
            "concurrency_limit": settings.concurrency_limit,
            "concurrency_options": ConcurrencyOptions(
                collision_strategy=ConcurrencyLimitStrategy(settings.when_full.upper()),
                grace_period_seconds=settings.seconds_to_start,
            ),
            "job_variables": _job_variables(settings),
            "parameter_openapi_schema": parameter_schema(flow).model_dump_for_openapi(),
            "enforce_parameter_schema": True,
            "pull_steps": [],
        }

    def current(self) -> Values:
        found = self.client.read_deployment_by_name(self.name)
        limit = found.global_concurrency_limit
        return {
            "entrypoint": found.entrypoint,
            "description": found.description or "",
            "parameters": found.parameters,
            "tags": sorted(found.tags),
            "schedules": _in_order(schedule.schedule for schedule in found.schedules),
            "work_pool_name": found.work_pool_name,
            "work_queue_name": found.work_queue_name,
            "concurrency_limit": limit and limit.limit,
            "concurrency_options": found.concurrency_options,
            "job_variables": found.job_variables,
            "parameter_openapi_schema": found.parameter_openapi_schema,
            "enforce_parameter_schema": found.enforce_parameter_schema,
            "pull_steps": found.pull_steps or [],
        }

    def make(self, wanted: Values) -> None:
        """Make it with all its schedules on."""
        self._put(wanted, stopped=[])

    def change(self, wanted: Values, fields: Sequence[str]) -> None:  # noqa: ARG002  (Prefect puts them all at once)
        """Put it anew; its id, and so the runs that it had, stay."""
        found = self.client.read_deployment_by_name(self.name)
        self._put(wanted, stopped=[schedule.schedule for schedule in found.schedules if not schedule.active])

    def _put(self, wanted: Values, stopped: Sequence[SCHEDULE_TYPES]) -> None:
        schedules = [
            DeploymentScheduleCreate(schedule=schedule, active=schedule not in stopped)
            for schedule in wanted["schedules"]
        ]
        flow_id = self.client.create_flow_from_name(self.flow.name)
        self.client.create_deployment(flow_id, self.settings.name, **{**wanted, "schedules": schedules})


def deployment_piece(client: SyncPrefectClient, settings: DeploymentSettings) -> DeploymentPiece:
    """Read and check a deployment's job. Raises JobError when it is wrong, or would lose what it makes."""
    job = load_job(settings.job, settings.changes)
    _refuse_lost_results(settings, job)
    return DeploymentPiece(client, settings, job)


def tags_of(job: RolloutJob, more: Sequence[str] = ()) -> list[str]:
    """Return what a job's runs are tagged with: what the UI finds them by."""
    return sorted({TAG, f"policy:{job.policy.model}", f"dataset:{job.prompts.source}", *more})


def _refuse_lost_results(settings: DeploymentSettings, job: RolloutJob) -> None:
    """Refuse places seen from a working folder where there is none: a worker makes one and removes it at the end."""
    if "working_dir" in settings.job_variables:
        return
    places = {"store": job.store}
    if job.report.page is not None:
        places["report.page"] = job.report.page
    if isinstance(job, RejectionSamplingJob):
        places["export.out"] = job.export.out
    for field, place in places.items():
        if "://" not in place and not Path(place).is_absolute():
            raise JobError(
                f"deployment {settings.name}: {field} is {place}, within a working folder that is removed when the run "
                "ends: name an s3:// address or an absolute path, or give job_variables a working_dir"
            )


def _job_variables(settings: DeploymentSettings) -> dict[str, Any]:
    environment = {**HEARTBEATS, **PATIENT_PREFECT, **settings.job_variables.get("env", {})}
    variables = {**settings.job_variables, "env": environment}
    if "working_dir" in variables:
        variables["working_dir"] = str(Path(variables["working_dir"]).absolute())
    return variables


def _schedule(settings: ScheduleSettings) -> SCHEDULE_TYPES:
    if settings.cron is not None:
        return CronSchedule(cron=settings.cron, timezone=settings.timezone)
    assert settings.interval_seconds is not None
    return IntervalSchedule(
        interval=timedelta(seconds=settings.interval_seconds),
        anchor_date=_INTERVALS_COUNT_FROM,
        timezone=settings.timezone,
    )


def _in_order(schedules: Iterable[SCHEDULE_TYPES]) -> list[SCHEDULE_TYPES]:
    """Return schedules in one order, for the server returns them in any."""
    return sorted(schedules, key=lambda schedule: schedule.model_dump_json())
