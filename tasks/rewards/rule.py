"""A reward that judges one answer at a time by a rule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from rollmill.tasks.rewards.base import BaseRewardModel
from rollmill.tasks.rewards.ground_truth import missing_ground_truth
from rollmill.tasks.rewards.item import Item


class RuleReward(BaseRewardModel):
    """A reward of one answer alone, so that an answer that cannot be judged costs no other."""

    @abstractmethod
    def score_item(self, item: Item) -> float:
        """Return the reward of one answer. Whatever it raises becomes that answer's failure."""

    def missing_column(self, columns: Collection[str]) -> str | None:  # noqa: ARG002 - a rule may need none
        """Return what the prompts lack for this rule, given the names of their columns; None when nothing."""
        return None

    def score(self, prompts: list[str], responses: list[list[str]], **columns: Any) -> Tensor:
        """Return the reward of every answer, [B, G] float32. Raises what the rule raises for any of them."""
        token_ids = columns.pop("response_token_ids", None)
        rows = []
        for b, (prompt, group) in enumerate(zip(prompts, responses, strict=True)):
            own = {name: values[b] for name, values in columns.items()}
            ids = token_ids[b] if token_ids is not None else [None] * len(group)
            items = [
                Item(prompt=prompt, response=text, columns=own, token_ids=token)
                for text, token in zip(group, ids, strict=True)
            ]
            rows.append([float(self.score_item(item)) for item in items])
        return torch.tensor(rows, dtype=torch.float32)


class AnswerRule(RuleReward):
    """A rule that compares an answer with the prompt's ground truth."""

    def __init__(self, answer_column: str | None = None) -> None:
        self.answer_column = answer_column

    def missing_column(self, columns: Collection[str]) -> str | None:
        """Return the ground truth's columns when the prompts have none of them."""
        return missing_ground_truth(columns, self.answer_column)
