"""Reward `exact_match`: the answer is the right one, character for character."""

from __future__ import annotations

from rollmill.tasks.rewards.ground_truth import accepted_answers
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.rule import AnswerRule


class ExactMatch(AnswerRule):
    """1.0 when the whole answer equals the ground truth, or one of a list of them, else 0.0.

    `strip` drops white space around both; `ignore_case` compares them case-folded.

        >>> ExactMatch().score(["Capital of Italy?"], [[" Rome\\n", "rome", "Rome, of course"]], answer=["Rome"])
        tensor([[1., 0., 0.]])
    """

    def __init__(self, answer_column: str | None = None, *, strip: bool = True, ignore_case: bool = False) -> None:
        super().__init__(answer_column)
        self.strip = strip
        self.ignore_case = ignore_case

    def score_item(self, item: Item) -> float:
        """Return 1.0 or 0.0. Raises RewardError when the prompt has no ground truth."""
        truths = accepted_answers(item.columns, self.answer_column)
        return float(self._comparable(item.response) in map(self._comparable, truths))

    def _comparable(self, text: str) -> str:
        text = text.strip() if self.strip else text
        return text.casefold() if self.ignore_case else text
