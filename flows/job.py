"""The job model: one YAML file, and the parameter of the flow, so that the Prefect UI draws its form."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollmill.tasks.generation.config import EngineConfig, PolicyConfig, SamplingConfig
from rollmill.tasks.generation.runner_config import LOCAL, RunnerConfig
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.rewards.config import RewardConfigs
from rollmill.tasks.storage_options import StorageOptions

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

FAILED_FRACTION = (
    "The share of answers whose reward may fail. Beyond it the run stops, as soon as that is certain, and publishes "
    "nothing more; the same command then scores only the failed ones again. 0 allows none, 1 any number."
)


class ShardsConfig(BaseModel):
    """How the prompt dataset is cut. Answers do not depend on it."""

    model_config = ConfigDict(extra="forbid", title="Shards")

    prompts_per_shard: int = Field(
        default=64,
        ge=1,
        description="Prompts in a shard, which is the unit of work, retry and commit: a killed run loses at most the "
        "shards that were in progress. A run keeps the shards it was begun with.",
    )


class PublishConfig(BaseModel):
    """When readers see a run."""

    model_config = ConfigDict(extra="forbid", title="Publish")

    every_shards: int | None = Field(
        default=None,
        ge=1,
        description="Append a dataset version each time that so many more shards are scored, so that a trainer can "
        "follow a long run; each has all shards that are finished by then, and none has more failed rewards than "
        "max_failed_fraction allows. Unset: one version, at the end.",
    )


class ReportConfig(BaseModel):
    """A page to look at, made of the version that the run publishes at its end."""

    model_config = ConfigDict(extra="forbid", title="Report")

    page: str | None = Field(
        default=None,
        min_length=1,
        description="Where rollmill report's page of the run's dataset version is written: a .html file or s3:// "
        "address, in which {run_id} and {version} stand for the run's own. Needs the extra report. Unset: no page.",
    )
    max_answers: int = Field(default=2000, ge=1, description="How many answers' texts the page holds at most.")


class FleetConfig(BaseModel):
    """How many flow runs share the run's shards. Who starts them waits, makes what they leave, and publishes."""

    model_config = ConfigDict(extra="forbid", title="Fleet")

    size: int = Field(
        default=1,
        ge=1,
        le=200,
        description="The missing shards are dealt out to so many runs of the deployment, all under this run id. 1: "
        "this run makes all of them itself.",
    )
    deployment: str | None = Field(
        default=None,
        pattern=r"^[^/]+/[^/]+$",
        description="Which deployment of the flow rollout they are runs of, as in rollout/member. It must let as many "
        "runs go at once.",
    )
    seconds_without_a_shard: float = Field(
        default=3600.0,
        gt=0,
        description="When none of their shards has been finished for so long, they are given up, and what is missing "
        "is dealt out once more or made by this run. A shard that such a run finishes later does no harm.",
    )

    @model_validator(mode="after")
    def _has_a_deployment(self) -> FleetConfig:
        if self.size > 1 and self.deployment is None:
            raise ValueError("name the deployment whose runs share the work, as in deployment: rollout/member")
        return self


class Share(BaseModel):
    """A flow run's part of a fleet's work: these shards, and nothing is published."""

    model_config = ConfigDict(extra="forbid", title="Share of a fleet")

    index: int = Field(ge=1, description="Which of the shares it is, for names.")
    of: int = Field(ge=1, description="How many shares there are.")
    shards: list[Annotated[int, Field(ge=0)]] = Field(min_length=1, description="The shards to make.")


class RolloutJob(BaseModel):
    """One policy version, one prompt dataset, one sampling setup and the rewards of its answers."""

    model_config = ConfigDict(extra="forbid", title="Rollout job")

    name: str = Field(
        pattern=NAME_PATTERN, max_length=100, description="Names the job: letters, digits, dots, dashes, underscores."
    )
    run_id: str | None = Field(
        default=None,
        pattern=NAME_PATTERN,
        max_length=200,
        description="Names the run within the store. The same run id goes on where it stopped; a job that differs from "
        "the run's plan is refused. Unset: {name}-v{policy.version}.",
    )
    store: str = Field(min_length=1, description="Where the rollouts are kept: a local folder or s3://bucket/prefix.")
    storage_options: StorageOptions = Field(
        default_factory=dict,
        description="Passed to fsspec for a store that is a URL, such as endpoint_url. Credentials are refused here: "
        "they come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL and so on).",
    )
    policy: PolicyConfig = Field(description="Which model answers.")
    prompts: PromptsConfig = Field(description="What is asked, and how it is put to the policy.")
    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="How answers are drawn.")
    rewards: RewardConfigs = Field(
        description="What the answers are worth: the weighted sum of these. Changed rewards score the same answers "
        "again without generating.",
    )
    max_failed_fraction: float = Field(default=0.1, ge=0.0, le=1.0, description=FAILED_FRACTION)
    shards: ShardsConfig = Field(default_factory=ShardsConfig, description="How the prompt dataset is cut.")
    publish: PublishConfig = Field(default_factory=PublishConfig, description="When readers see the run.")
    report: ReportConfig = Field(default_factory=ReportConfig, description="A page made of the published version.")
    engine: EngineConfig = Field(default_factory=EngineConfig, description="What the policy runs on.")
    runner: RunnerConfig = Field(default=LOCAL, description="Where the engines are.")
    fleet: FleetConfig = Field(default_factory=FleetConfig, description="How many flow runs share the work.")

    @property
    def resolved_run_id(self) -> str:
        """The run id given, or {name}-v{policy.version}."""
        return self.run_id or f"{self.name}-v{self.policy.version}"
