"""A reward that counts only if a condition passes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rollmill.tasks.rewards.composition import Part, first_missing, kept_of
from rollmill.tasks.rewards.item import Group, Outcome, failure
from rollmill.tasks.rewards.rating import Outcomes, Rater


class Gate(Rater):
    """`reward` where the condition's value is at least `threshold`, else `otherwise`.

    The reward is not asked for answers that do not pass, so a costly judge is spared them. When the condition fails,
    or the reward of an answer that passed, the whole fails.
    """

    def __init__(self, condition: Part, reward: Rater, *, threshold: float, otherwise: float) -> None:
        self._condition = condition
        self._reward = reward
        self._threshold = threshold
        self._otherwise = otherwise

    def rate(self, groups: Sequence[Group]) -> Outcomes:
        conditions = self._condition.rater.rate(groups)
        passing = [
            [item for item, outcome in zip(group, outcomes, strict=True) if self._passes(outcome)]
            for group, outcomes in zip(groups, conditions, strict=True)
        ]
        rewards = [iter(outcomes) for outcomes in self._reward.rate(passing)]
        return [
            [self._combine(outcome, rest) for outcome in outcomes]
            for outcomes, rest in zip(conditions, rewards, strict=True)
        ]

    def missing_column(self, columns: Collection[str]) -> str | None:
        return first_missing([self._condition], columns) or self._reward.missing_column(columns)

    def _passes(self, outcome: Outcome) -> bool:
        return outcome.value is not None and outcome.value >= self._threshold

    def _combine(self, condition: Outcome, rewards: Iterator[Outcome]) -> Outcome:
        kept = kept_of(self._condition, condition)
        if condition.value is None:
            return failure(f"{self._condition.name}: {condition.reason}", kept)
        if not self._passes(condition):
            return Outcome(value=self._otherwise, parts=kept)
        reward = next(rewards)
        return Outcome(value=reward.value, reason=reward.reason, parts={**kept, **reward.parts})
