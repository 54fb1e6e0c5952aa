"""The job sections of the rewards that are rules, and of one's own code."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from rollmill.tasks.rewards.fields import AnswerFields, LimitFields, RewardFields, job_errors_are_value_errors
from rollmill.tasks.rewards.format import check_tags
from rollmill.tasks.rewards.regex import compile_pattern

Unit = Literal["tokens", "characters", "words"]


class LastNumberConfig(AnswerFields):
    """1 when the last number of the answer is the right one, else 0."""

    type: Literal["last_number"]
    tolerance: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="The largest difference that still counts as equal."
    )


class ExactMatchConfig(AnswerFields):
    """1 when the whole answer is the right one, else 0."""

    type: Literal["exact_match"]
    strip: bool = Field(default=True, description="White space around both is dropped before they are compared.")
    ignore_case: bool = Field(default=False, description="Upper and lower case count as the same.")


class ContainsConfig(AnswerFields):
    """1 when the right answer occurs anywhere in the answer, else 0."""

    type: Literal["contains"]
    ignore_case: bool = Field(default=False, description="Upper and lower case count as the same.")


class RegexConfig(LimitFields, AnswerFields):
    """1 when a pattern is found in the answer (and what its group caught is right), else 0."""

    type: Literal["regex"]
    pattern: str = Field(min_length=1, description="A Python regular expression, searched for; flags as in (?is)….")
    group: int | str | None = Field(
        default=None,
        description="The group, by number or name, whose text must equal the ground truth. Unset compares nothing.",
    )

    @model_validator(mode="after")
    def _compiles(self) -> RegexConfig:
        with job_errors_are_value_errors():
            compile_pattern(self.pattern, self.group)
        return self


class LengthConfig(RewardFields):
    """How near an answer's length is to a target, or whether it stays within a limit."""

    type: Literal["length"]
    target: int | None = Field(
        default=None, ge=1, description="The reward falls from 1 at this length to 0 at none, and at twice the length."
    )
    max: int | None = Field(default=None, ge=1, description="1 up to and including this length, else 0.")
    unit: Unit = Field(
        default="tokens", description="What is counted: sampled tokens, characters, or words between white space."
    )

    @model_validator(mode="after")
    def _one_bound(self) -> LengthConfig:
        if (self.target is None) == (self.max is None):
            raise ValueError("give either target or max")
        return self


class MathConfig(LimitFields, AnswerFields):
    """1 when math-verify finds the answer equal to the ground truth, else 0."""

    type: Literal["math"]


class ReasoningGymConfig(LimitFields, RewardFields):
    """What the reasoning-gym task that made the prompt gives for the answer."""

    type: Literal["reasoning_gym"]
    answer_tag: str = Field(
        default="answer",
        pattern=r"^\w+$",
        description="The last part between <tag> and </tag> is judged when an answer has one, else all of it.",
    )


class FormatConfig(RewardFields):
    """1 when the answer is made of the given tags in their order, else 0."""

    type: Literal["format"]
    tags: list[str] = Field(
        default=["think", "answer"],
        min_length=1,
        description="Names of the tags, each of which must be opened and closed exactly once, in this order.",
    )
    outside: Literal["nothing", "after", "anything"] = Field(
        default="nothing",
        description="What may stand outside the tags besides white space: nothing, text after the last, or anything.",
    )

    @model_validator(mode="after")
    def _names(self) -> FormatConfig:
        with job_errors_are_value_errors():
            check_tags(self.tags)
        return self


class LengthPenaltyConfig(RewardFields):
    """0 for short answers, falling to -1 over a buffer before the longest length, and -1 beyond it."""

    type: Literal["length_penalty"]
    max: int = Field(ge=1, description="The length from which on the reward is -1.")
    buffer: int = Field(ge=1, description="How far below max the penalty begins; it grows evenly from there.")
    unit: Unit = Field(default="tokens", description="What is counted, as for length.")

    @model_validator(mode="after")
    def _fits(self) -> LengthPenaltyConfig:
        if self.buffer > self.max:
            raise ValueError(f"buffer must be at most max ({self.max}), got {self.buffer}")
        return self


class FunctionConfig(LimitFields, AnswerFields):
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
    seconds_per_call: float = Field(
        default=60.0, gt=0, le=86400, description="Longest time one call may take; its process is then ended."
    )
    answers_per_call: int = Field(
        default=64, ge=1, description="Most answers that a TRL-style function is given at once; groups stay whole."
    )
    isolated: bool | None = Field(
        default=None,
        description="Whether it runs in a process of its own, which can be ended. Unset isolates functions, and keeps "
        "a BaseRewardModel, which may be large or on a GPU, in the scoring process.",
    )

    def _unnamed(self) -> str:
        return self.path.rpartition(":")[2]
