"""The job section that says how answers are judged: one model a kind of reward, told apart by `type`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from rollmill.tasks.rewards.config_rules import (
    ContainsConfig,
    ExactMatchConfig,
    FormatConfig,
    FunctionConfig,
    LastNumberConfig,
    LengthConfig,
    LengthPenaltyConfig,
    MathConfig,
    ReasoningGymConfig,
    RegexConfig,
)
from rollmill.tasks.rewards.config_services import CodeConfig, HttpConfig, JudgeConfig, ModelConfig
from rollmill.tasks.rewards.fields import RewardFields, distinct_names

PlainConfig = Annotated[
    LastNumberConfig
    | ExactMatchConfig
    | ContainsConfig
    | RegexConfig
    | LengthConfig
    | MathConfig
    | FormatConfig
    | LengthPenaltyConfig
    | ReasoningGymConfig
    | CodeConfig
    | HttpConfig
    | JudgeConfig
    | ModelConfig
    | FunctionConfig,
    Field(discriminator="type"),
]
"""A reward that is not made of others."""

PlainConfigs = Annotated[list[PlainConfig], Field(min_length=1), AfterValidator(distinct_names)]


class SumConfig(RewardFields):
    """The sum of rewards, each times its weight, as one part of the whole."""

    type: Literal["sum"]
    rewards: PlainConfigs = Field(description="The rewards that are added up; each is also stored, as name/part.")


class MinConfig(RewardFields):
    """The least of rewards, each times its weight: the answer must do well by all of them."""

    type: Literal["min"]
    rewards: PlainConfigs = Field(description="The rewards of which the least counts; each is stored, as name/part.")


class GateConfig(RewardFields):
    """The weighted sum of rewards that count only if a condition passes; they are not even asked for if not."""

    type: Literal["gate"]
    condition: PlainConfig = Field(description="The reward that decides; it is stored as name/part like the others.")
    threshold: float = Field(default=0.5, allow_inf_nan=False, description="The condition passes from this value on.")
    otherwise: float = Field(
        default=0.0, allow_inf_nan=False, description="The reward of an answer that does not pass."
    )
    rewards: PlainConfigs = Field(description="The rewards of an answer that passes.")

    @model_validator(mode="after")
    def _parts_can_be_told_apart(self) -> GateConfig:
        distinct_names([self.condition, *self.rewards])
        if self.condition.weight != 1.0:
            raise ValueError("the condition is compared with threshold and has no weight")
        return self


RewardConfig = Annotated[
    LastNumberConfig
    | ExactMatchConfig
    | ContainsConfig
    | RegexConfig
    | LengthConfig
    | MathConfig
    | FormatConfig
    | LengthPenaltyConfig
    | ReasoningGymConfig
    | CodeConfig
    | HttpConfig
    | JudgeConfig
    | ModelConfig
    | FunctionConfig
    | SumConfig
    | MinConfig
    | GateConfig,
    Field(discriminator="type"),
]
"""One reward of a job."""


RewardConfigs = Annotated[list[RewardConfig], Field(min_length=1), AfterValidator(distinct_names)]
"""All rewards of a job, one or more, with distinct names: the type of the job's field `rewards`."""
