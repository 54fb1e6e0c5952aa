"""The job model: one YAML file, and the parameter of the flow, so that the Prefect UI draws its form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rollmill.tasks.generation.config import EngineConfig, PolicyConfig, SamplingConfig
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.rewards.config import RewardConfigs

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

_SECRET_OPTIONS = frozenset({"key", "secret", "token", "password", "aws_access_key_id", "aws_secret_access_key"})


def _refuse_credentials(options: dict[str, Any]) -> dict[str, Any]:
    """Return `options`. Raises ValueError when they hold credentials, which Prefect would store with the job."""
    found = sorted(_SECRET_OPTIONS.intersection(options))
    if found:
        raise ValueError(f"{', '.join(found)} would be stored with the job: put credentials into the environment")
    return options


StorageOptions = Annotated[dict[str, Any], AfterValidator(_refuse_credentials)]
"""What fsspec is told of a store, without credentials."""

FAILED_FRACTION = (
    "The share of answers whose reward may fail. Beyond it the run stops, as soon as that is certain, and publishes "
    "nothing more; the same command then scores only the failed ones again. 0 allows none, 1 any number."
)


class ShardsConfig(BaseModel):
    """How the prompt dataset is cut. Answers do not depend on it."""

    model_config = ConfigDict(extra="forbid")

    prompts_per_shard: int = Field(
        default=64,
        ge=1,
        description="Prompts in a shard, which is the unit of work, retry and commit: a killed run loses at most the "
        "shards that were in progress. A run keeps the shards it was begun with.",
    )


class PublishConfig(BaseModel):
    """When readers see a run."""

    model_config = ConfigDict(extra="forbid")

    every_shards: int | None = Field(
        default=None,
        ge=1,
        description="Append a dataset version each time that so many more shards are scored, so that a trainer can "
        "follow a long run; each has all shards that are finished by then, and none has more failed rewards than "
        "max_failed_fraction allows. Unset: one version, at the end.",
    )


class RunnerConfig(BaseModel):
    """Where the engines are."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["local"] = Field(default="local", description="local: one engine process a device of this machine.")


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
    engine: EngineConfig = Field(default_factory=EngineConfig, description="What the policy runs on.")
    runner: RunnerConfig = Field(default_factory=RunnerConfig, description="Where the engines are.")

    @property
    def resolved_run_id(self) -> str:
        """The run id given, or {name}-v{policy.version}."""
        return self.run_id or f"{self.name}-v{self.policy.version}"
