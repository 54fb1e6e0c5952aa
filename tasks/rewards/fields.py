"""The fields that every kind of reward has in a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field

from rollmill.errors import JobError

Fields = TypeVar("Fields", bound="RewardFields")


def _kind(model: type) -> str:
    """Return what forms call a kind of reward: its type."""
    assert issubclass(model, BaseModel)
    kind = model.model_fields.get("type")
    return model.__name__ if kind is None else str(get_args(kind.annotation)[0])


class RewardFields(BaseModel):
    """What every kind of reward has."""

    model_config = ConfigDict(extra="forbid", model_title_generator=_kind)

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

    view: Literal["text", "special_tokens"] = Field(
        default="text",
        description="What is judged: the answer's text without special tokens, or with them, decoded from its tokens.",
    )
    prefilled: str | None = Field(
        default=None,
        min_length=1,
        description="What the chat template may have begun the answer with, such as <think>: when a prompt ends with "
        "it, it is judged as the beginning of the answer.",
    )

    @property
    def part_name(self) -> str:
        """The name that the part is stored under."""
        return self.name or self._unnamed()

    def _unnamed(self) -> str:
        return str(self.model_dump(include={"type"})["type"])


class AnswerFields(RewardFields):
    """What every reward has that compares with a ground truth."""

    answer_column: str | None = Field(
        default=None,
        min_length=1,
        description="The prompt column that holds the ground truth; a dot reaches into a column of objects. Unset "
        "takes the first of answer, ground_truth, solution and reward_model.ground_truth that a prompt has.",
    )


def distinct_names(configs: Sequence[Fields]) -> Sequence[Fields]:
    """Return `configs`. Raises ValueError when two parts would be stored under one name."""
    seen: set[str] = set()
    for config in configs:
        if config.part_name in seen:
            raise ValueError(f"two rewards are named {config.part_name!r}: give one of them another name")
        seen.add(config.part_name)
    return configs


class LimitFields(BaseModel):
    """What every reward has that is judged in a process of its own."""

    seconds_per_call: float = Field(
        default=10.0,
        gt=0,
        le=86400,
        description="Longest time one answer (or one call of a batched function) may take; its process is then ended "
        "and the answer fails.",
    )
    memory_mb: int | None = Field(
        default=None,
        ge=16,
        description="Most memory that the reward's process may take, in MiB, besides what it starts with (Linux only). "
        "Unset sets no limit.",
    )


@contextmanager
def job_errors_are_value_errors() -> Iterator[None]:
    """Let a check that raises JobError be a pydantic validator, which must raise ValueError."""
    try:
        yield
    except JobError as error:
        raise ValueError(str(error)) from error
