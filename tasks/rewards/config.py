"""The job section that says how answers are judged: one model a kind of reward, told apart by `type`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from rollmill.errors import JobError
from rollmill.tasks.rewards.regex import compile_pattern


class _RewardConfig(BaseModel):
    """What every kind of reward has."""

    model_config = ConfigDict(extra="forbid")

    weight: float = Field(
        default=1.0,
        allow_inf_nan=False,
        description="The total reward is the sum of each reward times its weight; 0 only keeps the part.",
    )
    name: str | None = Field(
        default=None,
        pattern=r"^[\w.-]{1,64}$",
        description="The name that the part is stored under; unset, it is the type, or what follows the colon of a "
        "function's path. Two rewards cannot share one.",
    )

    @property
    def part_name(self) -> str:
        """The name that the part is stored under."""
        return self.name or self._unnamed()

    def _unnamed(self) -> str:
        return str(self.model_dump(include={"type"})["type"])


class _AnswerConfig(_RewardConfig):
    """What every reward has that compares with a ground truth."""

    answer_column: str | None = Field(
        default=None,
        min_length=1,
        description="The prompt column that holds the ground truth; a dot reaches into a column of objects. Unset "
        "takes the first of answer, ground_truth, solution and reward_model.ground_truth that a prompt has.",
    )


class LastNumberConfig(_AnswerConfig):
    """1 when the last number of the answer is the right one, else 0."""

    type: Literal["last_number"]
    tolerance: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="The largest difference that still counts as equal."
    )


class ExactMatchConfig(_AnswerConfig):
    """1 when the whole answer is the right one, else 0."""

    type: Literal["exact_match"]
    strip: bool = Field(default=True, description="White space around both is dropped before they are compared.")
    ignore_case: bool = Field(default=False, description="Upper and lower case count as the same.")


class ContainsConfig(_AnswerConfig):
    """1 when the right answer occurs anywhere in the answer, else 0."""

    type: Literal["contains"]
    ignore_case: bool = Field(default=False, description="Upper and lower case count as the same.")


class RegexConfig(_AnswerConfig):
    """1 when a pattern is found in the answer (and what its group caught is right), else 0."""

    type: Literal["regex"]
    pattern: str = Field(min_length=1, description="A Python regular expression, searched for; flags as in (?is)….")
    group: int | str | None = Field(
        default=None,
        description="The group, by number or name, whose text must equal the ground truth. Unset compares nothing.",
    )

    @model_validator(mode="after")
    def _compiles(self) -> RegexConfig:
        try:
            compile_pattern(self.pattern, self.group)
        except JobError as error:
            raise ValueError(str(error)) from error
        return self


class LengthConfig(_RewardConfig):
    """How near an answer's length is to a target, or whether it stays within a limit."""

    type: Literal["length"]
    target: int | None = Field(
        default=None, ge=1, description="The reward falls from 1 at this length to 0 at none, and at twice the length."
    )
    max: int | None = Field(default=None, ge=1, description="1 up to and including this length, else 0.")
    unit: Literal["tokens", "characters", "words"] = Field(
        default="tokens", description="What is counted: sampled tokens, characters, or words between white space."
    )

    @model_validator(mode="after")
    def _one_bound(self) -> LengthConfig:
        if (self.target is None) == (self.max is None):
            raise ValueError("give either target or max")
        return self


class MathConfig(_AnswerConfig):
    """1 when math-verify finds the answer equal to the ground truth, else 0."""

    type: Literal["math"]


class ReasoningGymConfig(_RewardConfig):
    """What the reasoning-gym task that made the prompt gives for the answer."""

    type: Literal["reasoning_gym"]
    answer_tag: str = Field(
        default="answer",
        pattern=r"^\w+$",
        description="The last part between <tag> and </tag> is judged when an answer has one, else all of it.",
    )


class FunctionConfig(_AnswerConfig):
    """Your own code: a function as TRL or verl calls it, or a BaseRewardModel."""

    type: Literal["function"]
    path: str = Field(
        pattern=r"^[^:\s]+(:[^:\s]+)?$",
        description="package.module:name, or the name of an installed entry point of the group rollmill.rewards.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Keywords for the constructor of a BaseRewardModel, or further ones for a function.",
    )
    conversational: bool = Field(
        default=False, description="A TRL-style function gets prompts and completions as lists of chat messages."
    )

    def _unnamed(self) -> str:
        return self.path.rpartition(":")[2]


RewardConfig = Annotated[
    LastNumberConfig
    | ExactMatchConfig
    | ContainsConfig
    | RegexConfig
    | LengthConfig
    | MathConfig
    | ReasoningGymConfig
    | FunctionConfig,
    Field(discriminator="type"),
]
"""One reward of a job."""


def distinct_names(configs: Sequence[RewardConfig]) -> Sequence[RewardConfig]:
    """Return `configs`. Raises ValueError when two parts would be stored under one name."""
    seen: set[str] = set()
    for config in configs:
        if config.part_name in seen:
            raise ValueError(f"two rewards are named {config.part_name!r}: give one of them another name")
        seen.add(config.part_name)
    return configs


RewardConfigs = Annotated[list[RewardConfig], Field(min_length=1), AfterValidator(distinct_names)]
"""All rewards of a job, one or more, with distinct names: the type of the job's field `rewards`."""
