"""Reward `length`: the answer is about as long as wanted, or no longer than allowed."""

from __future__ import annotations

from typing import Literal

from rollmill.errors import JobError, RewardError
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.rule import RuleReward

Unit = Literal["tokens", "characters", "words"]


class Length(RuleReward):
    """How near an answer's length is to `target`, or whether it stays within `max`; give one of the two.

    With `target` the reward is 1 − |length − target| / target, and 0 from twice the target on. With `max` it is 1.0
    up to and including that length, else 0.0. `unit` is tokens (as sampled, the stop token included), characters, or
    words separated by white space. Raises JobError unless exactly one of the two is given and at least 1.

        >>> Length(target=4, unit="characters").score(["Say hi"], [["hiya", "hi", "hello there"]])
        tensor([[1.0000, 0.5000, 0.0000]])
    """

    def __init__(self, *, target: int | None = None, max: int | None = None, unit: Unit = "tokens") -> None:
        given = [bound for bound in (target, max) if bound is not None]
        if len(given) != 1 or given[0] < 1:
            raise JobError(f"length needs either target or max, at least 1; got target {target} and max {max}")
        self.target, self.max, self.unit = target, max, unit

    def score_item(self, item: Item) -> float:
        """Return a value in [0, 1]. Raises RewardError when tokens are counted and the caller gave no token ids."""
        length = measure(item, self.unit)
        if self.target is None:
            return float(length <= (self.max or 0))
        return max(0.0, 1.0 - abs(length - self.target) / self.target)


def measure(item: Item, unit: Unit) -> int:
    """Return the length of an answer. Raises RewardError when tokens are counted and there are no token ids."""
    if unit == "characters":
        return len(item.response)
    if unit == "words":
        return len(item.response.split())
    if item.token_ids is None:
        raise RewardError("tokens cannot be counted without response_token_ids; pass them, or count characters")
    return len(item.token_ids)
