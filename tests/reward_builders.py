"""Scorers of reward models that a test has made itself."""

from __future__ import annotations

from rollmill.tasks.rewards.base import BaseRewardModel
from rollmill.tasks.rewards.composition import Part
from rollmill.tasks.rewards.function import rater_of
from rollmill.tasks.rewards.scoring import Scorer


def scorer_of(model: BaseRewardModel) -> Scorer:
    """Return the scorer of one reward model, as a job's reward of its class would have."""
    name = type(model).__name__
    return Scorer([Part(name=name, rater=rater_of(model))], fingerprint=name)
