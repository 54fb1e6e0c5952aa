"""What rescoring is told: which version, by which rewards, and which of its rows. It is the flow's parameter."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollmill.flows.job import FAILED_FRACTION
from rollmill.tasks.rewards.config import RewardConfigs
from rollmill.tasks.row_filter import Condition, RowFilter
from rollmill.tasks.scoring import FAILED_ROWS
from rollmill.tasks.storage_options import StorageOptions


class RescoreJob(BaseModel):
    """A dataset version whose answers get new rewards. Nothing is generated, and the version itself stays as it is."""

    model_config = ConfigDict(extra="forbid", title="Rescoring")

    store: str = Field(min_length=1, description="Where the rollouts are kept: a local folder or s3://bucket/prefix.")
    storage_options: StorageOptions = Field(
        default_factory=dict, description="Passed to fsspec for a store that is a URL, without any credentials."
    )
    version: int | None = Field(default=None, ge=1, description="The dataset version; unset takes the latest.")
    rewards: RewardConfigs | None = Field(
        default=None,
        description="The rewards to score by. Unset, with failed, takes those that the version was scored by.",
    )
    where: Condition | None = Field(
        default=None,
        description='Score only rows of which this holds, such as reward < 0.5 and finish_reason == "stop"; the others '
        "keep what they have.",
    )
    failed: bool = Field(default=False, description="Score only rows whose reward could not be computed.")
    max_failed_fraction: float = Field(default=0.1, ge=0.0, le=1.0, description=FAILED_FRACTION)

    @model_validator(mode="after")
    def _says_by_what(self) -> RescoreJob:
        if self.rewards is None and not self.failed:
            raise ValueError("name the rewards to score by, or failed to try those again that could not be computed")
        return self

    @property
    def condition(self) -> RowFilter | None:
        """Which rows are scored; None for all."""
        conditions = [f"({self.where})"] * (self.where is not None) + [FAILED_ROWS] * self.failed
        return RowFilter(" and ".join(conditions)) if conditions else None

    @property
    def title(self) -> str:
        """A name for the flow run."""
        return "latest version" if self.version is None else f"version {self.version}"
