"""Reward `contains`: the right answer occurs in the answer."""

from __future__ import annotations

from rollmill.errors import RewardError
from rollmill.tasks.rewards.ground_truth import accepted_answers
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.rule import AnswerRule


class Contains(AnswerRule):
    """1.0 when the ground truth, or one of a list of them, occurs anywhere in the answer, else 0.0.

    `ignore_case` compares case-folded. White space around the ground truth is dropped; an empty one fails by name,
    since every answer contains it.

        >>> Contains(ignore_case=True).score(["Capital of Italy?"], [["It is rome.", "Milan"]], answer=["Rome"])
        tensor([[1., 0.]])
    """

    def __init__(self, answer_column: str | None = None, *, ignore_case: bool = False) -> None:
        super().__init__(answer_column)
        self.ignore_case = ignore_case

    def score_item(self, item: Item) -> float:
        """Return 1.0 or 0.0. Raises RewardError when the prompt has no ground truth, or an empty one."""
        truths = [text.strip() for text in accepted_answers(item.columns, self.answer_column)]
        if not all(truths):
            raise RewardError("the ground truth is empty, and every answer contains it")
        response = self._comparable(item.response)
        return float(any(self._comparable(truth) in response for truth in truths))

    def _comparable(self, text: str) -> str:
        return text.casefold() if self.ignore_case else text
