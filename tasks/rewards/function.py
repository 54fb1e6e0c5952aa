"""Reward `function`: a user's own code, as TRL and verl call it, or a `BaseRewardModel`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rollmill.errors import JobError
from rollmill.tasks.rewards.base import BaseRewardModel
from rollmill.tasks.rewards.config_rules import FunctionConfig
from rollmill.tasks.rewards.entry import load_object
from rollmill.tasks.rewards.item import describe
from rollmill.tasks.rewards.rating import ModelRater, Rater, RuleRater
from rollmill.tasks.rewards.rule import RuleReward
from rollmill.tasks.rewards.signature import accepted_keywords
from rollmill.tasks.rewards.trl import TrlRater
from rollmill.tasks.rewards.verl import ARGUMENTS, VerlRater

EXPECTED = (
    "expected (prompts, completions, **columns) as TRL calls it, (data_source, solution_str, ground_truth, "
    "extra_info) as verl calls it, or a BaseRewardModel"
)


def function_rater(config: FunctionConfig) -> Rater:
    """Return the reward that the configured path names, told apart by its signature.

    A `BaseRewardModel` subclass is made with the options, and a function gets them as further keywords. Raises
    JobError when there is no such object, or it is none of these.
    """
    path, options = config.path, config.options
    found = load_object(path)
    if isinstance(found, type):
        found, options = _constructed(found, path, options), {}
    if isinstance(found, BaseRewardModel):
        if options:
            raise JobError(f"reward function {path!r} is an object already made, and takes no options")
        return rater_of(found)
    if not callable(found):
        raise JobError(f"reward function {path!r} is a {type(found).__name__}; {EXPECTED}")
    return _called_rater(found, config)


def rater_of(model: BaseRewardModel) -> Rater:
    """Return a reward model as the scorer uses it."""
    return RuleRater(model) if isinstance(model, RuleReward) else ModelRater(model)


def _constructed(kind: type, path: str, options: Mapping[str, Any]) -> object:
    try:
        return kind(**options)
    except JobError:
        raise
    except (Exception, SystemExit) as error:
        raise JobError(
            f"reward function {path!r}: making it with options {sorted(options)} failed: {describe(error)}"
        ) from error


def _called_rater(function: Callable[..., Any], config: FunctionConfig) -> Rater:
    path, options = config.path, config.options
    try:
        accepted = accepted_keywords(function)
    except (TypeError, ValueError) as error:
        raise JobError(f"reward function {path!r} has no signature that can be read; {EXPECTED}") from error
    unknown = sorted(set(options) - accepted.named) if not accepted.takes_any else []
    if unknown:
        raise JobError(f"reward function {path!r} takes no option {', '.join(unknown)}")
    if {"solution_str", "ground_truth"} <= accepted.named:
        _refuse_unserved(accepted.required - ARGUMENTS - set(options), path)
        return VerlRater(function, options, answer_column=config.answer_column)
    if "completions" in accepted.named or (accepted.takes_any and not accepted.required - {"prompts"}):
        return TrlRater(
            function,
            options,
            conversational=config.conversational,
            answers_per_call=config.answers_per_call,
        )
    raise JobError(f"reward function {path!r} takes {inspect.signature(function)}; {EXPECTED}")


def _refuse_unserved(names: Collection[str], path: str) -> None:
    if names:
        raise JobError(f"reward function {path!r} needs {', '.join(sorted(names))}: give it in options")
