"""Scoring for a trainer that wants to be told at once when its reward model breaks its contract."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from rollmill.errors import RewardError
from rollmill.storage.results import RawRollout, RolloutResult
from rollmill.tasks.generation.types import FINISH_ERROR
from rollmill.tasks.rewards.base import BaseRewardModel
from rollmill.tasks.rewards.composition import Part
from rollmill.tasks.rewards.function import rater_of
from rollmill.tasks.rewards.item import Group, describe
from rollmill.tasks.rewards.rating import ModelRater, Outcomes
from rollmill.tasks.rewards.rule import RuleReward
from rollmill.tasks.rewards.scoring import Scorer

logger = logging.getLogger(__name__)


def score_strictly(raw: RawRollout, model: BaseRewardModel) -> RolloutResult:
    """Return `raw` with its rewards; an answer for which `model` raises, and one that is an error, has NaN.

    Raises JobError when the model needs a column that is not there, RewardError when its scores have a wrong shape or
    are not finite, or when it fails for every answer.
    """
    rater = rater_of(model) if isinstance(model, RuleReward) else _StrictRater(model)
    name = type(model).__name__
    scorer = Scorer([Part(name=name, rater=rater)], fingerprint=name)
    scorer.check(list(raw.columns))
    result = scorer.score_rollout(raw)
    error = rater.error if isinstance(rater, _StrictRater) else None
    if isinstance(rater, _StrictRater) and rater.breach is not None:
        raise RewardError(f"{name}: {rater.breach}") from error
    answered = sum(reason != FINISH_ERROR for group in raw.finish_reasons for reason in group)
    failed = answered - int(torch.isfinite(result.rewards).sum())
    why = "" if error is None else f": {describe(error)}"
    if failed and failed == answered:
        raise RewardError(f"{name} failed for all {answered} answers{why}") from error
    if failed:
        logger.warning("%s failed for %d of %d answers, which have NaN%s", name, failed, answered, why)
    return result


class _StrictRater(ModelRater):
    """Remembers how the model first broke its contract, and the last error that it raised."""

    breach: str | None = None
    error: Exception | None = None

    def rate_batch(self, groups: Sequence[Group]) -> Outcomes:
        try:
            outcomes = super().rate_batch(groups)
        except RewardError as error:
            self.breach = self.breach or str(error)
            raise
        except Exception as error:
            self.error = error
            raise
        reasons = [outcome.reason for group in outcomes for outcome in group if outcome.reason is not None]
        if reasons:
            self.breach = self.breach or reasons[0]
        return outcomes
