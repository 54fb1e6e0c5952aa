"""Compositions count what they say, keep their parts, and fail when a part they need fails."""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from store_builders import parts_of

from rollmill.errors import JobError
from rollmill.tasks.rewards.composition import Minimum, Part
from rollmill.tasks.rewards.config import RewardConfigs
from rollmill.tasks.rewards.gate import Gate
from rollmill.tasks.rewards.item import Group, Item, Outcome, outcome_of
from rollmill.tasks.rewards.rating import ItemRater, Outcomes, Rater
from rollmill.tasks.rewards.scoring import Scorer, build_rewards
from rollmill.tasks.rewards.view import ViewRater

MakeTable = Callable[..., pa.Table]
MakeScorer = Callable[..., Scorer]
VALUES = st.floats(-100, 100) | st.none()


class Given(Rater):
    """Gives each answer the value that stands in its text, and keeps what it was asked for."""

    def __init__(self, column: str) -> None:
        self.column = column
        self.asked: list[str] = []

    def rate(self, groups: Sequence[Group]) -> Outcomes:
        self.asked += [item.response for group in groups for item in group]
        return [[outcome_of(item.columns[self.column][item.response]) for item in group] for group in groups]


@given(st.lists(st.lists(st.tuples(VALUES, VALUES), max_size=4), max_size=4))
def test_a_gate_asks_for_and_counts_its_reward_only_where_the_condition_passes(
    values: list[list[tuple[float | None, float | None]]],
) -> None:
    columns: dict[str, dict[str, float | None]] = {"condition": {}, "reward": {}}
    groups = [
        [Item(prompt="", response=f"{b}.{g}", columns=columns) for g in range(len(row))] for b, row in enumerate(values)
    ]
    for group, row in zip(groups, values, strict=True):
        for item, (condition, reward) in zip(group, row, strict=True):
            columns["condition"][item.response], columns["reward"][item.response] = condition, reward
    second = Given("reward")
    gate = Gate(Part(name="ok", rater=Given("condition")), second, threshold=1.0, otherwise=-2.0)
    outcomes = [outcome for group in gate.rate(groups) for outcome in group]
    pairs = [pair for row in values for pair in row]
    assert [outcome.value for outcome in outcomes] == [
        None if condition is None else reward if condition >= 1 else -2.0 for condition, reward in pairs
    ]
    assert len(second.asked) == sum(condition is not None and condition >= 1 for condition, _ in pairs)
    assert all((outcome.reason is None) == (outcome.value is not None) for outcome in outcomes)


@given(st.lists(st.tuples(st.floats(-10, 10), VALUES), min_size=1, max_size=4))
def test_a_minimum_is_the_least_of_its_weighted_parts(pairs: list[tuple[float, float | None]]) -> None:
    parts = [
        Part(name=str(i), rater=ItemRater(lambda _item, value=value: outcome_of(value)), weight=weight)
        for i, (weight, value) in enumerate(pairs)
    ]
    ((outcome,),) = Minimum(parts).rate([[Item(prompt="", response="")]])
    weighted = [weight * value for weight, value in pairs if value is not None]
    assert outcome.value == (min(weighted) if len(weighted) == len(pairs) else None)


def test_parts_of_compositions_are_stored_under_the_compositions_name(
    response_table: MakeTable, scorer: MakeScorer
) -> None:
    job = scorer(
        {
            "type": "gate",
            "name": "careful",
            "condition": {"type": "format", "tags": ["answer"]},
            "rewards": [{"type": "last_number", "weight": 2.0}, {"type": "length", "max": 99, "unit": "words"}],
        },
        {"type": "min", "rewards": [{"type": "contains"}, {"type": "length", "max": 1, "unit": "words"}]},
        {"type": "sum", "rewards": [{"type": "contains", "weight": 0.25}], "weight": 0},
    )
    table = job.score_table(response_table([["<answer>4</answer>", "4", "a 5"]], [{"answer": "4"}]))
    assert table["reward"].to_pylist() == [4.0, 1.0, 0.0]
    assert parts_of(table["reward_parts"][0].as_py()) == {
        "careful": 3.0, "careful/format": 1.0, "careful/last_number": 1.0, "careful/length": 1.0,
        "min": 1.0, "min/contains": 1.0, "min/length": 1.0, "sum": 0.25, "sum/contains": 1.0,
    }  # fmt: skip
    assert parts_of(table["reward_parts"][1].as_py())["careful/format"] == 0.0
    assert "careful/last_number" not in parts_of(table["reward_parts"][1].as_py())
    failed = job.score_table(response_table([["<answer>4</answer>"]], [{"answer": "no number"}]))
    assert failed["reward"].to_pylist() == [None]
    assert failed["reward_error"][0].as_py().startswith("careful: last_number: the ground truth 'no number'")
    assert parts_of(failed["reward_parts"][0].as_py())["careful/format"] == 1.0


def test_a_part_that_cannot_be_had_is_named_with_its_place(scorer: MakeScorer) -> None:
    bad = {"type": "function", "path": "no_such_module:f"}
    with pytest.raises(JobError, match=r"^rewards\[0\]\.condition: reward function 'no_such_module:f'"):
        scorer({"type": "gate", "condition": bad, "rewards": [{"type": "format"}]})
    with pytest.raises(JobError, match=r"^rewards\[1\]\.rewards\[1\]: "):
        scorer({"type": "format"}, {"type": "min", "rewards": [{"type": "format"}, bad]})


@pytest.mark.parametrize("kind", ["min", "sum"])
def test_what_a_part_of_a_composition_lacks_is_found_early(scorer: MakeScorer, kind: str) -> None:
    job = scorer({"type": kind, "rewards": [{"type": "format"}, {"type": "contains", "answer_column": "label"}]})
    with pytest.raises(JobError, match=rf"rewards\[0\] \({kind}\) needs the column label; the prompts have answer"):
        job.check(["answer"])
    gate = scorer({"type": "gate", "condition": {"type": "contains"}, "rewards": [{"type": "format"}]})
    with pytest.raises(JobError, match="needs one of the columns"):
        gate.check(["x"])


def test_a_reward_sees_special_tokens_and_what_the_template_began_when_it_asks_for_them(
    response_table: MakeTable,
) -> None:
    configs = TypeAdapter(RewardConfigs).validate_python(
        [
            {"type": "regex", "name": "plain", "pattern": "<eos>"},
            {"type": "regex", "name": "special", "pattern": "<eos>$", "view": "special_tokens", "weight": 10},
            {
                "type": "regex",
                "name": "prefilled",
                "pattern": "^prompt 0\\na",
                "prefilled": "prompt 0\n",
                "weight": 100,
            },
        ]
    )
    with pytest.raises(JobError, match=r"rewards\[1\]: the view special_tokens needs the policy's tokenizer"):
        build_rewards(configs)
    job = build_rewards(configs, decode=lambda ids: bytes(ids).decode() + "<eos>")
    assert job.score_table(response_table([["a"], ["a"]]))["reward"].to_pylist() == [110.0, 10.0]


def test_an_answer_whose_tokens_cannot_be_decoded_fails_alone() -> None:
    def decode(ids: Sequence[int]) -> str:
        return {1: "one"}[ids[0]]

    rater = ViewRater(ItemRater(lambda item: outcome_of(len(item.response))), decode=decode)
    items = [Item(prompt="", response="", token_ids=ids) for ids in ([1], [2], None)]
    ((good, unknown, none),) = rater.rate([items])
    assert good == Outcome(value=3.0)
    assert unknown.reason == "the answer's tokens cannot be decoded: KeyError: 2"
    assert "token ids" in str(none.reason)
