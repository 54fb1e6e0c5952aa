"""From the configuration of a reward to the reward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from rollmill.errors import JobError
from rollmill.tasks.rewards.code import Code
from rollmill.tasks.rewards.composition import Minimum, Part, Sum
from rollmill.tasks.rewards.concurrent import ConcurrentRater
from rollmill.tasks.rewards.config import GateConfig, MinConfig, PlainConfig, RewardConfig, SumConfig
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
from rollmill.tasks.rewards.config_services import CodeConfig
from rollmill.tasks.rewards.contains import Contains
from rollmill.tasks.rewards.exact_match import ExactMatch
from rollmill.tasks.rewards.fields import LimitFields
from rollmill.tasks.rewards.format import Format
from rollmill.tasks.rewards.function import function_rater
from rollmill.tasks.rewards.gate import Gate
from rollmill.tasks.rewards.isolation.isolated import Limits, isolated
from rollmill.tasks.rewards.last_number import LastNumber
from rollmill.tasks.rewards.length import Length
from rollmill.tasks.rewards.length_penalty import LengthPenalty
from rollmill.tasks.rewards.math import Math
from rollmill.tasks.rewards.rating import Rater, RuleRater
from rollmill.tasks.rewards.reasoning_gym import ReasoningGym
from rollmill.tasks.rewards.regex import Regex
from rollmill.tasks.rewards.rule import RuleReward
from rollmill.tasks.rewards.sandbox.run import SandboxLimits
from rollmill.tasks.rewards.trl import TrlRater
from rollmill.tasks.rewards.verl import VerlRater
from rollmill.tasks.rewards.view import Decode, ViewRater


def build_parts(configs: Sequence[RewardConfig], decode: Decode | None = None, place: str = "rewards") -> list[Part]:
    """Return the parts that `configs` describe. Raises JobError, which names the place, when one cannot be had."""
    return [build_part(config, decode, f"{place}[{index}]") for index, config in enumerate(configs)]


def build_part(config: RewardConfig, decode: Decode | None, place: str) -> Part:
    """Return the part that `config` describes. Raises JobError, which names the place, when it cannot be had."""
    match config:
        case SumConfig():
            rater: Rater = Sum(build_parts(config.rewards, decode, f"{place}.rewards"))
        case MinConfig():
            rater = Minimum(build_parts(config.rewards, decode, f"{place}.rewards"))
        case GateConfig():
            rater = _gate(config, decode, place)
        case _:
            rater = _plain(config, place)
    if config.view == "special_tokens" and decode is None:
        raise JobError(f"{place}: the view special_tokens needs the policy's tokenizer, and there is none here")
    if config.view == "special_tokens" or config.prefilled is not None:
        shown = decode if config.view == "special_tokens" else None
        rater = ViewRater(rater, decode=shown, prefilled=config.prefilled)
    return Part(name=config.part_name, rater=rater, weight=config.weight)


def _gate(config: GateConfig, decode: Decode | None, place: str) -> Rater:
    return Gate(
        build_part(config.condition, decode, f"{place}.condition"),
        Sum(build_parts(config.rewards, decode, f"{place}.rewards")),
        threshold=config.threshold,
        otherwise=config.otherwise,
    )


def _plain(config: PlainConfig, place: str) -> Rater:
    try:
        rater = plain_rater(config)
    except JobError as error:
        raise JobError(f"{place}: {error}") from error
    if isinstance(config, LimitFields) and _is_isolated(config, rater):
        memory_bytes = None if config.memory_mb is None else config.memory_mb * 2**20
        limits = Limits(seconds_per_call=config.seconds_per_call, memory_bytes=memory_bytes)
        return isolated(rater, config.model_dump(mode="json"), limits)
    return rater


def _is_isolated(config: LimitFields, rater: Rater) -> bool:
    if isinstance(config, FunctionConfig):
        return isinstance(rater, (TrlRater, VerlRater)) if config.isolated is None else config.isolated
    return True


def plain_rater(config: PlainConfig) -> Rater:
    """Return the reward that `config` describes, to be used in this process. Raises JobError."""
    if isinstance(config, FunctionConfig):
        return function_rater(config)
    if isinstance(config, CodeConfig):
        return _code_rater(config)
    return RuleRater(_rule(config))


def _code_rater(config: CodeConfig) -> Rater:
    limits = SandboxLimits(
        seconds=config.seconds_per_test,
        memory_bytes=config.memory_mb * 2**20,
        file_bytes=config.file_mb * 2**20,
        num_processes=config.max_processes,
    )
    code = Code(config.tests_column, partial=config.partial, limits=limits)
    return ConcurrentRater(code.judge, concurrency=config.concurrency, missing_column=code.missing_column)


@lru_cache(maxsize=1)
def _plain_adapter() -> TypeAdapter[PlainConfig]:
    return TypeAdapter(PlainConfig)


def plain_config(values: dict[str, Any]) -> PlainConfig:
    """Return the configuration that `values` are the fields of."""
    return _plain_adapter().validate_python(values)


def _rule(config: PlainConfig) -> RuleReward:
    match config:
        case LastNumberConfig():
            return LastNumber(config.answer_column, config.tolerance)
        case ExactMatchConfig():
            return ExactMatch(config.answer_column, strip=config.strip, ignore_case=config.ignore_case)
        case ContainsConfig():
            return Contains(config.answer_column, ignore_case=config.ignore_case)
        case RegexConfig():
            return Regex(config.pattern, config.group, config.answer_column)
        case LengthConfig():
            return Length(target=config.target, max=config.max, unit=config.unit)
        case MathConfig():
            return Math(config.answer_column)
        case FormatConfig():
            return Format(config.tags, config.outside)
        case LengthPenaltyConfig():
            return LengthPenalty(max=config.max, buffer=config.buffer, unit=config.unit)
        case ReasoningGymConfig():
            return ReasoningGym(config.answer_tag)
    raise AssertionError(f"no rule for {type(config).__name__}")
