"""From the configuration of a reward to the reward."""

from __future__ import annotations

from rollmill.tasks.rewards.config import (
    ContainsConfig,
    ExactMatchConfig,
    FunctionConfig,
    LastNumberConfig,
    LengthConfig,
    MathConfig,
    ReasoningGymConfig,
    RegexConfig,
    RewardConfig,
)
from rollmill.tasks.rewards.contains import Contains
from rollmill.tasks.rewards.exact_match import ExactMatch
from rollmill.tasks.rewards.function import function_rater
from rollmill.tasks.rewards.last_number import LastNumber
from rollmill.tasks.rewards.length import Length
from rollmill.tasks.rewards.math import Math
from rollmill.tasks.rewards.rating import Rater, RuleRater
from rollmill.tasks.rewards.reasoning_gym import ReasoningGym
from rollmill.tasks.rewards.regex import Regex
from rollmill.tasks.rewards.rule import RuleReward


def build_rater(config: RewardConfig) -> Rater:
    """Return the reward that `config` describes. Raises JobError when it cannot be had."""
    if isinstance(config, FunctionConfig):
        return function_rater(
            config.path, config.options, answer_column=config.answer_column, conversational=config.conversational
        )
    return RuleRater(_rule(config))


def _rule(config: RewardConfig) -> RuleReward:
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
        case ReasoningGymConfig():
            return ReasoningGym(config.answer_tag)
    raise AssertionError(f"no rule for {type(config).__name__}")
