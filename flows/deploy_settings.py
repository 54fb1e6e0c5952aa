"""What a team wants on its Prefect server, as one YAML file that `rollmill deploy` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from prefect.client.schemas.schedules import CronSchedule
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rollmill.errors import JobError
from rollmill.flows.job import NAME_PATTERN
from rollmill.flows.job_file import check_values, read_yaml


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")


class QueueSettings(_Settings):
    """One queue of a work pool."""

    name: str = Field(pattern=NAME_PATTERN, description="Names the queue within its pool.")
    concurrency_limit: int | None = Field(
        default=None, ge=0, description="How many runs of this queue may go at once; unset: any number."
    )


class WorkPoolSettings(_Settings):
    """Where runs are executed."""

    name: str = Field(pattern=NAME_PATTERN, description="Names the pool; a worker is started with `--pool` and this.")
    type: str = Field(
        default="process",
        min_length=1,
        description="process: a child of the worker. kubernetes, docker and others: what Prefect's worker of this type "
        "starts. The type of a pool that is there cannot change.",
    )
    description: str = Field(default="", description="What the UI says of the pool.")
    base_job_template: Path | None = Field(
        default=None,
        description="A JSON or YAML file, seen from this one, with the pool's base job template. Unset: Prefect's own.",
    )
    concurrency_limit: int | None = Field(
        default=None, ge=0, description="How many runs of the pool may go at once; unset: any number."
    )
    queues: list[QueueSettings] = Field(
        default_factory=list, description="Its queues, the most urgent first; `default` comes after them."
    )


class ConcurrencyLimitSettings(_Settings):
    """A global concurrency limit: slots that runs on any machine share."""

    name: str = Field(pattern=NAME_PATTERN, description="What runs ask for.")
    limit: int = Field(ge=0, description="How many slots there are, such as the number of GPUs.")


class ScheduleSettings(_Settings):
    """When a deployment runs by itself."""

    cron: str | None = Field(default=None, description="Minute, hour, day of month, month, day of week.")
    interval_seconds: int | None = Field(
        default=None, ge=1, description="Seconds from one start to the next, counted from 2020-01-01 00:00 UTC."
    )
    timezone: str = Field(default="UTC", description="What cron's hours mean, such as Europe/Berlin.")

    @model_validator(mode="after")
    def _is_one_schedule(self) -> ScheduleSettings:
        if (self.cron is None) == (self.interval_seconds is None):
            raise ValueError("a schedule has either cron or interval_seconds")
        CronSchedule(cron=self.cron or "0 0 * * *", timezone=self.timezone)
        return self


class DeploymentSettings(_Settings):
    """A job that Prefect starts: by schedule, from the UI, or through the API."""

    name: str = Field(pattern=NAME_PATTERN, description="Names the deployment, apart from its flow.")
    job: Path = Field(
        description="The job file, seen from this file. With a section export the flow is rejection-sampling, "
        "otherwise rollout."
    )
    changes: list[str] = Field(
        default_factory=list, description="Changes of the job's fields, such as store=s3://bucket/rollouts."
    )
    description: str = Field(default="", description="What the UI says of it.")
    work_pool: str = Field(description="The pool that runs it, one of this file.")
    work_queue: str | None = Field(default=None, description="Its queue, one of the pool's; unset: `default`.")
    schedules: list[ScheduleSettings] = Field(default_factory=list, description="When it runs by itself.")
    follows: str | None = Field(
        default=None,
        pattern=NAME_PATTERN,
        description="The policy whose announced weights start it, by the name that they are announced by, as `rollmill "
        "follow` does; with when_full enqueue, so that weights announced while a run goes are not passed over.",
    )
    concurrency_limit: int = Field(default=1, ge=1, description="How many of its runs may go at once.")
    when_full: Literal["cancel_new", "enqueue"] = Field(
        default="cancel_new",
        description="What becomes of a run that is due while so many go: cancel_new cancels it, enqueue lets it wait.",
    )
    seconds_to_start: int = Field(
        default=600,
        ge=60,
        le=86_400,
        description="How long a machine may take to start a run before the run's place is given to another.",
    )
    tags: list[str] = Field(
        default_factory=list, description="Further tags, beside rollmill, policy:… and dataset:…, of each of its runs."
    )
    job_variables: dict[str, Any] = Field(
        default_factory=dict,
        description="What the pool's template takes: env, working_dir (a relative one is seen from where the command "
        "runs), image and so on. Never credentials: those are in the workers' environment.",
    )


class ZombieRunsSettings(_Settings):
    """Runs whose process is gone without a word are marked Crashed."""

    seconds_without_heartbeat: int = Field(
        default=300,
        ge=90,
        description="How long a run may be silent. A run sends a heartbeat every 30 seconds.",
    )


class PendingRunsSettings(_Settings):
    """Runs that a worker took and whose process never began are marked Crashed."""

    seconds: int = Field(default=900, ge=60, description="How long a run may be Pending.")


class FailedRunsSettings(_Settings):
    """A run that ends without publishing (a closed failure gate, lost shards) is a matter for a person."""

    pause: bool = Field(
        default=True, description="Pause its deployment, so that the next night does not meet the same fault."
    )


class AutomationsSettings(_Settings):
    """What the server does by itself when runs go wrong; a section that is not there makes no automation."""

    zombie_runs: ZombieRunsSettings | None = Field(default=None, description="Marks runs without heartbeat Crashed.")
    pending_runs: PendingRunsSettings | None = Field(default=None, description="Marks runs that never begin Crashed.")
    failed_runs: FailedRunsSettings | None = Field(
        default=None, description="Pauses the deployment of a run that fails, or only notifies."
    )
    notify: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9-]+/[a-z0-9-]+$",
        description="A notification block, type/name such as slack-webhook/on-call, that is told each time.",
    )

    @model_validator(mode="after")
    def _each_does_something(self) -> AutomationsSettings:
        if self.failed_runs is not None and not self.failed_runs.pause and self.notify is None:
            raise ValueError("failed_runs with pause: false does nothing unless notify names a block")
        return self


class TeamSettings(_Settings):
    """Everything that `rollmill deploy` sets up."""

    work_pools: list[WorkPoolSettings] = Field(default_factory=list, description="Where runs are executed.")
    concurrency_limits: list[ConcurrencyLimitSettings] = Field(
        default_factory=list, description="Global concurrency limits."
    )
    deployments: list[DeploymentSettings] = Field(default_factory=list, description="Jobs that Prefect starts.")
    automations: AutomationsSettings = Field(
        default_factory=AutomationsSettings, description="What the server does when runs go wrong."
    )

    @field_validator("work_pools", "concurrency_limits", "deployments")
    @classmethod
    def _have_names_of_their_own(cls, parts: list[Any]) -> list[Any]:
        names = [part.name for part in parts]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} occurs twice")
        return parts

    @model_validator(mode="after")
    def _deployments_have_their_pools(self) -> TeamSettings:
        queues = {pool.name: {"default", *(queue.name for queue in pool.queues)} for pool in self.work_pools}
        for deployment in self.deployments:
            where = f"deployment {deployment.name}"
            if deployment.work_pool not in queues:
                raise ValueError(f"{where}: {deployment.work_pool} is none of the work pools {', '.join(queues)}")
            if deployment.work_queue is not None and deployment.work_queue not in queues[deployment.work_pool]:
                raise ValueError(f"{where}: the pool {deployment.work_pool} has no queue {deployment.work_queue}")
        return self


def load_settings(path: Path) -> TeamSettings:
    """Read settings. Raises JobError with one line that names every wrong field by its path."""
    values = read_yaml(path, what="settings file")
    if not isinstance(values, dict):
        raise JobError(f"{path}: must hold a mapping with work_pools, concurrency_limits, deployments or automations")
    settings = check_values(TeamSettings, values, str(path))
    return _seen_from(settings, path.parent)


def _seen_from(settings: TeamSettings, folder: Path) -> TeamSettings:
    """Return the settings with the files that they name made paths that this process can open."""
    pools = [
        pool.model_copy(update={"base_job_template": pool.base_job_template and folder / pool.base_job_template})
        for pool in settings.work_pools
    ]
    deployments = [part.model_copy(update={"job": folder / part.job}) for part in settings.deployments]
    return settings.model_copy(update={"work_pools": pools, "deployments": deployments})
