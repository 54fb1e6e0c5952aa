"""Reward `length_penalty`: answers near the longest length pay for it."""

from __future__ import annotations

from rollmill.errors import JobError
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.length import Unit, measure
from rollmill.tasks.rewards.rule import RuleReward


class LengthPenalty(RuleReward):
    """0 up to a length of max − buffer, falling evenly to −1 at `max`, and −1 beyond.

    It is the soft overlong punishment of DAPO (Yu and others 2025, equation 13). `unit` is tokens, characters or
    words. Raises JobError unless 1 ≤ buffer ≤ max.

        >>> LengthPenalty(max=8, buffer=4, unit="characters").score(["Say hi"], [["hi", "hello!", "hello there"]])
        tensor([[ 0.0000, -0.5000, -1.0000]])
    """

    def __init__(self, *, max: int, buffer: int, unit: Unit = "tokens") -> None:
        if not 1 <= buffer <= max:
            raise JobError(f"length_penalty needs 1 ≤ buffer ≤ max, got buffer {buffer} and max {max}")
        self.free, self.buffer, self.unit = max - buffer, buffer, unit

    def score_item(self, item: Item) -> float:
        """Return a value in [-1, 0]. Raises RewardError when tokens are counted and the caller gave no token ids."""
        over = measure(item, self.unit) - self.free
        return -min(max(over, 0) / self.buffer, 1.0) + 0.0
