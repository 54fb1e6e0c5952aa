"""Reward `reasoning_gym`: the task's own scorer."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from rollmill.errors import JobError, RewardError
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.rule import RuleReward

COLUMN = "reasoning_gym"
"""The prompt column that the source `reasoning_gym:<task>` fills with `{"task": …, "options": {…}, "entry": {…}}`."""


class ReasoningGym(RuleReward):
    """What the reasoning-gym task that made the prompt gives for the answer, mostly between 0 and 1.

    Prompts come from the source `reasoning_gym:<task>`, whose column `reasoning_gym` holds the task, its options and
    its entry. When the answer has a `<answer>…</answer>` part, the last one is judged, else all of it, white space
    around it dropped; `answer_tag` names another tag. It needs the package: `pip install "rollmill[demo]"`; without
    it the constructor raises JobError.

        >>> import reasoning_gym
        >>> options = {"seed": 1, "size": 1}
        >>> entry = reasoning_gym.create_dataset("chain_sum", **options)[0]
        >>> column = {"task": "chain_sum", "options": options, "entry": entry}
        >>> right = f"I think <answer>{entry['answer']}</answer>"
        >>> ReasoningGym().score([entry["question"]], [[right, "no idea"]], reasoning_gym=[column])
        tensor([[1., 0.]])
    """

    def __init__(self, answer_tag: str = "answer") -> None:
        _dataset_maker()
        tag = re.escape(answer_tag)
        self._answer = re.compile(rf"<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", re.DOTALL)

    def missing_column(self, columns: Collection[str]) -> str | None:
        """Return the column that the prompt source fills when the prompts lack it."""
        return None if COLUMN in columns else f"the column {COLUMN}, which the prompt source reasoning_gym:<task> makes"

    def score_item(self, item: Item) -> float:
        """Return the task's own score. Raises RewardError when the prompt was not made by reasoning-gym."""
        made = item.columns.get(COLUMN)
        if not isinstance(made, Mapping) or not {"task", "entry"} <= made.keys():
            raise RewardError(f"the column {COLUMN} of this prompt holds no task and entry")
        parts = self._answer.findall(item.response)
        answer = (parts[-1] if parts else item.response).strip()
        dataset = _dataset(made["task"], json.dumps(made.get("options") or {}, sort_keys=True))
        return float(dataset.score_answer(answer, made["entry"]))


@lru_cache(maxsize=256)
def _dataset(task: str, options: str) -> Any:
    return _dataset_maker()(task, **json.loads(options))


def _dataset_maker() -> Any:
    try:
        from reasoning_gym import create_dataset
    except ImportError as error:
        raise JobError(
            f"the reward reasoning_gym needs reasoning-gym, which cannot be imported ({error}): "
            'pip install "rollmill[demo]"'
        ) from error
    return create_dataset
