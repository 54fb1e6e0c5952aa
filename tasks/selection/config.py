"""What a selection is told: the options of `rollmill export` and the section of a job."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rollmill.storage.schema import RESPONSE_SCHEMA
from rollmill.tasks.figures import PASS_REWARD
from rollmill.tasks.rewards.fields import job_errors_are_value_errors
from rollmill.tasks.row_filter import Condition
from rollmill.tasks.selection.best import threshold
from rollmill.tasks.selection.duplicates import DuplicateScope
from rollmill.tasks.selection.group_filters import pass_rate_between
from rollmill.tasks.selection.labels import kto
from rollmill.tasks.selection.pairs import PairRule, PairStrategy
from rollmill.tasks.selection.row_filters import check_pattern, within_length

TrainingFormat = Literal["sft", "dpo", "kto", "table"]


class SelectionConfig(BaseModel):
    """Which answers become training data. Filters act in the order of these fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="Selection")

    best_of: int | None = Field(
        default=None, ge=1, description="Look only at the first so many answers to each prompt; unset looks at all."
    )
    min_pass_rate: float | None = Field(
        default=None, ge=0, le=1, description="Leave out prompts of which a smaller share of the scored answers pass."
    )
    max_pass_rate: float | None = Field(
        default=None, ge=0, le=1, description="Leave out prompts of which a greater share of the scored answers pass."
    )
    pass_reward: float = Field(
        default=PASS_REWARD, allow_inf_nan=False, description="An answer passes with a reward of at least this."
    )
    zero_variance: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Leave out prompts whose rewards all lie within this of each other; 0 is for equal rewards.",
    )
    keep_truncated: bool = Field(default=False, description="Keep answers that were cut at the token limit.")
    min_tokens: int | None = Field(default=None, ge=1, description="Leave out answers of fewer tokens.")
    max_tokens: int | None = Field(default=None, ge=1, description="Leave out answers of more tokens.")
    match: str | None = Field(
        default=None, description="Keep answers in which this regular expression (RE2 syntax) is found."
    )
    no_match: str | None = Field(
        default=None, description="Leave out answers in which this regular expression (RE2 syntax) is found."
    )
    where: Condition | None = Field(
        default=None, description="Keep rows of which this holds, such as policy_version >= 3 and reward > 0.5."
    )
    min_reward: float | None = Field(
        default=None, allow_inf_nan=False, description="Leave out answers with a smaller reward."
    )
    max_reward: float | None = Field(
        default=None, allow_inf_nan=False, description="Leave out answers with a greater reward."
    )
    keep_duplicates: bool = Field(
        default=False, description="Keep answers of the same text, not only the best of them."
    )
    near_duplicates: float | None = Field(
        default=None,
        ge=0.1,
        le=1,
        description="Leave out answers that share this much of their words, from 0.1 to 1, with one that is kept.",
    )
    duplicate_scope: DuplicateScope = Field(
        default="prompt", description="Whether only answers to the same prompt can be duplicates, or all."
    )
    top: int | None = Field(
        default=None,
        ge=1,
        description="Keep so many of the best answers to each prompt. Unset is 1 for sft, and all for table; dpo and "
        "kto need the others too.",
    )
    pairs: PairStrategy = Field(
        default="max_min",
        description="For dpo: max_min pairs the best answer with the worst, max_random with a random worse one, "
        "adjacent each with the next best.",
    )
    min_margin: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="For dpo: least difference of the two rewards."
    )
    max_length_ratio: float | None = Field(
        default=None,
        ge=1,
        allow_inf_nan=False,
        description="For dpo: most times that one of the two may have as many tokens as the other.",
    )
    desirable: float = Field(
        default=PASS_REWARD,
        allow_inf_nan=False,
        description="For kto: answers with at least this reward are desirable.",
    )
    undesirable: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="For kto: answers with a smaller reward are undesirable; unset is desirable itself. What lies "
        "between the two is left out.",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Another seed draws other pairs for max_random.")

    @field_validator("match", "no_match")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        with job_errors_are_value_errors():
            return pattern and check_pattern(pattern)

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> SelectionConfig:
        nothing = RESPONSE_SCHEMA.empty_table()
        with job_errors_are_value_errors():
            pass_rate_between(nothing, self.min_pass_rate, self.max_pass_rate)
            within_length(nothing, self.min_tokens, self.max_tokens)
            threshold(nothing, self.min_reward, self.max_reward)
            kto(nothing, self.desirable, self.undesirable)
        return self

    @property
    def pair_rule(self) -> PairRule:
        """Return which answers make a pair."""
        return PairRule(
            strategy=self.pairs,
            min_margin=self.min_margin,
            max_length_ratio=self.max_length_ratio,
            seed=self.seed,
        )
