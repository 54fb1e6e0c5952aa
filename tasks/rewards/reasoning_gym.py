"""Reward `reasoning_gym`: the task's own scorer."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from rollmill.errors import JobError, RewardError
from rollmill.tasks.prompts.sources.reasoning_gym_task import COLUMN, create_task
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.rule import RuleReward

_STORED = ("question", "answer", "metadata")


class ReasoningGym(RuleReward):
    """What the reasoning-gym task that made the prompt gives for the answer, mostly between 0 and 1.

    Prompts come from the source `reasoning_gym:<task>`, whose column `reasoning_gym` names the task, its options and
    the entry's index; the columns question, answer and metadata hold the entry. When the answer has a
    `<answer>…</answer>` part, the last one is judged, else all of it, white space around it dropped; `answer_tag`
    names another tag. It needs the package: `pip install "rollmill[demo]"`; without it the constructor raises
    JobError.

        >>> import reasoning_gym
        >>> options = {"seed": 1, "size": 1}
        >>> entry = reasoning_gym.create_dataset("chain_sum", **options)[0]
        >>> columns = {name: [value] for name, value in entry.items()}
        >>> origin = {"task": "chain_sum", "options": options, "index": 0}
        >>> right = f"I think <answer>{entry['answer']}</answer>"
        >>> ReasoningGym().score([entry["question"]], [[right, "no idea"]], reasoning_gym=[origin], **columns)
        tensor([[1., 0.]])
    """

    def __init__(self, answer_tag: str = "answer") -> None:
        try:
            import reasoning_gym  # noqa: F401 - a missing package is found before anything is generated
        except ImportError as error:
            raise JobError(
                f"the reward reasoning_gym needs reasoning-gym, which cannot be imported ({error}): "
                'pip install "rollmill[demo]"'
            ) from error
        tag = re.escape(answer_tag)
        self._answer = re.compile(rf"<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", re.DOTALL)

    def missing_column(self, columns: Collection[str]) -> str | None:
        """Return the column that the prompt source fills when the prompts lack it."""
        return None if COLUMN in columns else f"the column {COLUMN}, which the prompt source reasoning_gym:<task> makes"

    def score_item(self, item: Item) -> float:
        """Return the task's own score. Raises RewardError when the prompt was not made by reasoning-gym."""
        origin = item.columns.get(COLUMN)
        if not isinstance(origin, Mapping) or "task" not in origin:
            raise RewardError(f"the column {COLUMN} of this prompt names no task")
        task, options = origin["task"], json.dumps(origin.get("options") or {}, sort_keys=True)
        entry = _entry(item.columns, task, options, origin.get("index"))
        parts = self._answer.findall(item.response)
        answer = (parts[-1] if parts else item.response).strip()
        return float(_dataset(task, options).score_answer(answer, entry))


def _entry(columns: Mapping[str, Any], task: str, options: str, index: object) -> Mapping[str, Any]:
    """Return the entry as its task makes it, for some scorers want the tuples that JSON made lists of; or as it was
    stored, when this version of the task no longer makes the same."""
    made = _made_entry(task, options, index) if isinstance(index, int) else None
    stored = {name: columns[name] for name in _STORED if name in columns}
    if made is not None and all(made[name] == stored.get(name, made[name]) for name in ("question", "answer")):
        return made
    if len(stored) < len(_STORED):
        raise RewardError(f"this prompt lacks the columns {', '.join(_STORED)} of its reasoning-gym entry")
    return stored


@lru_cache(maxsize=1024)
def _made_entry(task: str, options: str, index: int) -> Mapping[str, Any]:
    entry: Mapping[str, Any] = _dataset(task, options)[index]
    return entry


@lru_cache(maxsize=64)
def _dataset(task: str, options: str) -> Any:
    return create_task(task, json.loads(options))
