"""From the configuration of a reward that is not made of others to the reward."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from rollmill.tasks.rewards.code import Code
from rollmill.tasks.rewards.concurrent import ConcurrentRater
from rollmill.tasks.rewards.config import PlainConfig
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
from rollmill.tasks.rewards.contains import Contains
from rollmill.tasks.rewards.exact_match import ExactMatch
from rollmill.tasks.rewards.format import Format
from rollmill.tasks.rewards.function import function_rater
from rollmill.tasks.rewards.http import HttpRater
from rollmill.tasks.rewards.judge import Judge
from rollmill.tasks.rewards.last_number import LastNumber
from rollmill.tasks.rewards.length import Length
from rollmill.tasks.rewards.length_penalty import LengthPenalty
from rollmill.tasks.rewards.math import Math
from rollmill.tasks.rewards.model import ClassifierRater, SequenceClassifier
from rollmill.tasks.rewards.rating import Rater, RuleRater
from rollmill.tasks.rewards.reasoning_gym import ReasoningGym
from rollmill.tasks.rewards.regex import Regex
from rollmill.tasks.rewards.rule import RuleReward
from rollmill.tasks.rewards.sandbox.run import SandboxLimits
from rollmill.tasks.rewards.service import LoadSecret, Service, ServiceLimits, api_key


def plain_rater(config: PlainConfig, load_secret: LoadSecret | None = None) -> Rater:
    """Return the reward that `config` describes, to be used in this process. Raises JobError."""
    match config:
        case FunctionConfig():
            return function_rater(config)
        case CodeConfig():
            return _code_rater(config)
        case HttpConfig():
            return HttpRater(
                _service(config, load_secret),
                config.columns,
                answers_per_call=config.answers_per_call,
                concurrency=config.concurrency,
            )
        case JudgeConfig():
            return _judge_rater(config, load_secret)
        case ModelConfig():
            return _classifier_rater(config)
    return RuleRater(_rule(config))


def _judge_rater(config: JudgeConfig, load_secret: LoadSecret | None) -> Rater:
    judge = Judge(
        _service(config, load_secret),
        model=config.model,
        template=config.template,
        pattern=config.pattern,
        lowest=config.lowest,
        highest=config.highest,
        answer_column=config.answer_column,
        request=config.request,
    )
    return ConcurrentRater(judge.judge, concurrency=config.concurrency, missing_column=judge.missing_column)


def _classifier_rater(config: ModelConfig) -> Rater:
    return ClassifierRater(
        SequenceClassifier(
            config.model,
            label=config.label,
            probability=config.probability,
            dtype=config.dtype,
            device=config.device,
            max_tokens=config.max_tokens,
            too_long=config.too_long,
            tokens_per_batch=config.tokens_per_batch,
        )
    )


def _service(config: HttpConfig | JudgeConfig, load_secret: LoadSecret | None) -> Service:
    limits = ServiceLimits(
        seconds_per_request=config.seconds_per_request, seconds_until_failure=config.seconds_until_failure
    )
    return Service(config.url, api_key(config.api_key_env, config.api_key_secret, load_secret), limits)


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
