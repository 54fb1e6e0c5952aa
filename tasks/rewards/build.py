"""From the rewards of a job to the parts of its scorer: compositions, views, and what runs in a child process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollmill.errors import JobError
from rollmill.tasks.rewards.build_plain import plain_rater
from rollmill.tasks.rewards.classifier import find_classifier, label_index
from rollmill.tasks.rewards.composition import Minimum, Part, Sum
from rollmill.tasks.rewards.config import GateConfig, MinConfig, PlainConfig, RewardConfig, SumConfig
from rollmill.tasks.rewards.config_rules import FunctionConfig
from rollmill.tasks.rewards.config_services import ModelConfig
from rollmill.tasks.rewards.fields import LimitFields
from rollmill.tasks.rewards.gate import Gate
from rollmill.tasks.rewards.isolation.isolated import IsolatedBatches, Limits, isolated
from rollmill.tasks.rewards.rating import Rater
from rollmill.tasks.rewards.service import LoadSecret
from rollmill.tasks.rewards.trl import TrlRater
from rollmill.tasks.rewards.verl import VerlRater
from rollmill.tasks.rewards.view import Decode, ViewRater

_SECONDS_TO_LOAD_A_MODEL = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What rewards may need that no job can hold: the policy's decoder with special tokens, and a way to secrets."""

    decode: Decode | None = None
    load_secret: LoadSecret | None = None


def build_parts(configs: Sequence[RewardConfig], means: Means, place: str = "rewards") -> list[Part]:
    """Return the parts that `configs` describe. Raises JobError, which names the place, when one cannot be had."""
    return [build_part(config, means, f"{place}[{index}]") for index, config in enumerate(configs)]


def build_part(config: RewardConfig, means: Means, place: str) -> Part:
    """Return the part that `config` describes. Raises JobError, which names the place, when it cannot be had."""
    match config:
        case SumConfig():
            rater: Rater = Sum(build_parts(config.rewards, means, f"{place}.rewards"))
        case MinConfig():
            rater = Minimum(build_parts(config.rewards, means, f"{place}.rewards"))
        case GateConfig():
            rater = _gate(config, means, place)
        case _:
            rater = _plain(config, means, place)
    if config.view == "special_tokens" and means.decode is None:
        raise JobError(f"{place}: the view special_tokens needs the policy's tokenizer, and there is none here")
    if config.view == "special_tokens" or config.prefilled is not None:
        shown = means.decode if config.view == "special_tokens" else None
        rater = ViewRater(rater, decode=shown, prefilled=config.prefilled)
    return Part(name=config.part_name, rater=rater, weight=config.weight)


def _gate(config: GateConfig, means: Means, place: str) -> Rater:
    return Gate(
        build_part(config.condition, means, f"{place}.condition"),
        Sum(build_parts(config.rewards, means, f"{place}.rewards")),
        threshold=config.threshold,
        otherwise=config.otherwise,
    )


def _plain(config: PlainConfig, means: Means, place: str) -> Rater:
    try:
        if isinstance(config, ModelConfig):
            return _classifier(config)
        rater = plain_rater(config, means.load_secret)
    except JobError as error:
        raise JobError(f"{place}: {error}") from error
    if isinstance(config, LimitFields) and _is_isolated(config, rater):
        memory_bytes = None if config.memory_mb is None else config.memory_mb * 2**20
        limits = Limits(seconds_per_call=config.seconds_per_call, memory_bytes=memory_bytes)
        return isolated(rater, config.model_dump(mode="json"), limits)
    return rater


def _classifier(config: ModelConfig) -> Rater:
    """Return a classifier in a process of its own, for all threads: this one loads no weights and uses no GPU."""
    label_index(config.model, find_classifier(config.model, weights=False)[1], config.label)
    limits = Limits(seconds_per_call=config.seconds_per_call, seconds_to_start=_SECONDS_TO_LOAD_A_MODEL, max_workers=1)
    return IsolatedBatches(config.model_dump(mode="json"), limits, answers_per_call=config.answers_per_call)


def _is_isolated(config: LimitFields, rater: Rater) -> bool:
    if isinstance(config, FunctionConfig):
        return isinstance(rater, (TrlRater, VerlRater)) if config.isolated is None else config.isolated
    return True
