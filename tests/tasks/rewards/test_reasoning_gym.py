"""The reward reasoning_gym is the task's own scorer on the entry that the prompt source made."""

import json

import pytest
from reasoning_gym.factory import DATASETS
from reward_builders import scorer_of

from rollmill.errors import RewardError
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.jsonable import to_jsonable
from rollmill.tasks.prompts.sources.reasoning_gym_task import COLUMN, rows
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.reasoning_gym import ReasoningGym

TASKS = sorted(set(DATASETS) - {"composite"})


def stored_columns(task: str) -> dict[str, object]:
    """Return the columns of a task's first prompt as they are after storing."""
    (row,) = rows(PromptsConfig(source=f"reasoning_gym:{task}", limit=1))
    assert row.values is not None
    columns: dict[str, object] = json.loads(json.dumps(to_jsonable(row.values, "row")))
    return columns


@pytest.mark.parametrize("task", ["chain_sum", "countdown", "rearc", "word_ladder", "zebra_puzzles"])
def test_the_tasks_own_answer_gets_full_marks_after_storing(task: str) -> None:
    columns = stored_columns(task)
    if not isinstance(columns["answer"], str):
        pytest.fail(f"{task} has no answer of its own")
    rule = ReasoningGym()
    for response in (
        columns["answer"],
        f"Let me think: <answer>1</answer> no, <answer> {columns['answer']}\n</answer> done",
    ):
        assert rule.score_item(Item(prompt="", response=response, columns=columns)) == 1.0
    assert rule.score_item(Item(prompt="", response="no idea", columns=columns)) < 1.0


def test_an_entry_that_its_task_no_longer_makes_is_scored_as_it_was_stored() -> None:
    columns = {**stored_columns("chain_sum"), "question": "1 + 1 =", "answer": "2"}
    assert ReasoningGym().score_item(Item(prompt="", response="2", columns=columns)) == 1.0


def test_another_tag_may_hold_the_answer() -> None:
    columns = stored_columns("chain_sum")
    response = f"<final>{columns['answer']}</final> <answer>x</answer>"
    assert ReasoningGym("final").score_item(Item(prompt="", response=response, columns=columns)) == 1.0


@pytest.mark.parametrize(
    "columns",
    [{}, {COLUMN: "chain_sum"}, {COLUMN: {"task": "chain_sum", "options": {}}}, {COLUMN: {"task": "no_such_task"}}],
)
def test_a_prompt_of_another_source_fails_by_name(columns: dict[str, object]) -> None:
    item = Item(prompt="", response="2", columns=columns)
    ((outcome,),) = scorer_of(ReasoningGym())._total.rate([[item]])
    assert outcome.value is None
    assert "reasoning" in str(outcome.reason)


def test_a_prompt_without_its_entry_is_an_error() -> None:
    with pytest.raises(RewardError, match="question, answer, metadata"):
        ReasoningGym().score_item(Item(prompt="", response="2", columns={COLUMN: {"task": "chain_sum"}}))
