"""A failure costs the answer that made it, and no other."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollmill.tasks.rewards.base import BaseRewardModel
from rollmill.tasks.rewards.composition import Part, Sum
from rollmill.tasks.rewards.function import rater_of
from rollmill.tasks.rewards.item import MAX_REASON_CHARACTERS, Group, Item, Outcome, outcome_of
from rollmill.tasks.rewards.rating import ItemRater, ModelRater

SHAPES = st.lists(st.lists(st.sampled_from(["ok", "bad", "nan", "exit"]), max_size=6), max_size=8)


class Picky(BaseRewardModel):
    """Raises for a batch that holds a bad answer, as a batched model would."""

    def __init__(self) -> None:
        self.calls = 0

    def score(self, prompts: list[str], responses: list[list[str]]) -> torch.Tensor:
        self.calls += 1
        texts = [text for group in responses for text in group]
        if "bad" in texts:
            raise ValueError("a bad answer")
        if "exit" in texts:
            raise SystemExit(3)
        return torch.tensor(
            [[math.nan if text == "nan" else float(len(text)) for text in group] for group in responses]
        )


def groups_of(texts: list[list[str]]) -> list[Group]:
    return [[Item(prompt=f"p{b}", response=text) for text in group] for b, group in enumerate(texts)]


@given(SHAPES)
def test_only_the_answers_that_fail_go_without_a_reward_wherever_they_are(texts: list[list[str]]) -> None:
    outcomes = ModelRater(Picky()).rate(groups_of(texts))
    assert [[outcome.value for outcome in group] for group in outcomes] == [
        [2.0 if text == "ok" else None for text in group] for group in texts
    ]
    reasons = {
        "bad": "ValueError: a bad answer",
        "exit": "SystemExit: 3",
        "nan": "the reward returned nan, not a finite number",
    }
    for group, outcome_group in zip(texts, outcomes, strict=True):
        assert [outcome.reason for outcome in outcome_group] == [reasons.get(text) for text in group]


def test_a_batch_without_a_failure_is_one_call_and_one_failure_costs_a_few_more() -> None:
    good, one_bad = Picky(), Picky()
    ModelRater(good).rate(groups_of([["ok"] * 8] * 64))
    ModelRater(one_bad).rate(groups_of([["ok"] * 8] * 63 + [["ok"] * 7 + ["bad"]]))
    assert good.calls == 1
    assert one_bad.calls == 1 + 2 * 9  # 512 = 2 ** 9 answers are halved nine times


def test_an_interrupt_is_not_a_failure_of_the_answer() -> None:
    def interrupted(item: Item) -> Outcome:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ItemRater(interrupted).rate(groups_of([["a"]]))

    class Interrupted(BaseRewardModel):
        def score(self, prompts: list[str], responses: list[list[str]]) -> torch.Tensor:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ModelRater(Interrupted()).rate(groups_of([["a", "b"]]))


class Returns(BaseRewardModel):
    def __init__(self, make: Callable[[int, int], object]) -> None:
        self.make = make

    def score(self, prompts: list[str], responses: list[list[str]]) -> torch.Tensor:
        return self.make(len(responses), len(responses[0]))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda b, _g: torch.zeros(b), "shape"),
        (lambda b, g: torch.zeros(g, b, 1), "shape"),
        (lambda _b, _g: torch.tensor(0.0), "shape"),
        (lambda b, g: torch.zeros(b, g + 1), "expected (1, 1)"),
        (lambda b, g: torch.zeros(b, g, dtype=torch.complex64), "complex"),
        (lambda _b, _g: None, "NoneType"),
        (lambda _b, _g: "text", "str"),
        (lambda b, g: [["text"] * g] * b, "list"),
        (lambda b, g: torch.full((b, g), math.inf), "inf, not a finite number"),
        (lambda b, g: torch.full((b, g), -math.inf), "-inf"),
    ],
)
def test_what_is_not_one_finite_number_an_answer_fails_by_name(make: Callable[[int, int], object], reason: str) -> None:
    outcomes = ModelRater(Returns(make)).rate(groups_of([["a", "b"], ["c", "d"]]))
    for group in outcomes:
        for outcome in group:
            assert outcome.value is None
            assert reason in str(outcome.reason)


@pytest.mark.parametrize(
    "make",
    [
        lambda b, g: torch.ones(b, g, dtype=torch.bfloat16, requires_grad=True),
        lambda b, g: torch.ones(b, g, dtype=torch.int64),
        lambda b, g: torch.ones(b, g, dtype=torch.bool),
        lambda b, g: np.ones((b, g)),
        lambda b, g: [[1.0] * g] * b,
    ],
)
def test_any_number_type_will_do(make: Callable[[int, int], object]) -> None:
    outcomes = ModelRater(Returns(make)).rate(groups_of([["a", "b"]]))
    assert [outcome.value for outcome in outcomes[0]] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "None"),
        ("0.5", "str '0.5', not a number"),
        ([0.5], "list"),
        (object(), "object"),
        (1j, "complex"),
        (math.nan, "nan"),
        (10**400, "inf"),
        (torch.tensor([1.0, 2.0]), "Tensor"),
        (np.array(["x"]), "ndarray"),
    ],
)
def test_a_value_that_is_not_a_finite_number_is_a_failure(value: object, reason: str) -> None:
    outcome = outcome_of(value)
    assert outcome.value is None
    assert reason in str(outcome.reason)


@pytest.mark.parametrize(
    "value", [1, 1.0, True, np.float32(1), np.int64(1), np.bool_(True), torch.tensor(1.0), np.array([1.0])]
)
def test_numbers_of_every_library_are_numbers(value: object) -> None:
    assert outcome_of(value) == Outcome(value=1.0)


def test_a_reason_is_one_short_line_even_when_the_exception_cannot_be_shown() -> None:
    class UnshowableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def judge(item: Item) -> Outcome:
        raise UnshowableError if item.response == "a" else ValueError("long\n" * 10_000)

    ((unshowable, long),) = ItemRater(judge).rate(groups_of([["a", "b"]]))
    assert unshowable.reason == "UnshowableError: its message cannot be shown: RuntimeError"
    assert str(long.reason).startswith("ValueError: long long")
    assert len(str(long.reason)) == MAX_REASON_CHARACTERS


class Columns(BaseRewardModel):
    """Keeps what it was called with."""

    def score(self, prompts: list[str], responses: list[list[str]], **columns: list[object]) -> torch.Tensor:
        self.seen = columns
        return torch.zeros(len(responses), len(responses[0]))


class Named(BaseRewardModel):
    def score(  # type: ignore[override]
        self,
        prompts: list[str],
        responses: list[list[str]],
        label: list[int],
        response_token_ids: object,
        other: object = 7,
    ) -> torch.Tensor:
        self.seen = (label, response_token_ids, other)
        return torch.zeros(len(responses), len(responses[0]))


def test_a_reward_model_gets_the_columns_that_its_signature_takes() -> None:
    groups = [
        [Item(prompt="p", response=text, columns={"label": 1, "x": 2}, token_ids=(5, 6)) for text in "ab"],
        [Item(prompt="q", response=text, columns={"label": 3}, token_ids=()) for text in "cd"],
    ]
    every, named = Columns(), Named()
    rater_of(every).rate(groups)
    rater_of(named).rate(groups)
    assert every.seen == {"label": [1, 3], "x": [2, None]}
    assert named.seen == ([1, 3], [[[5, 6], [5, 6]], [[], []]], 7)
    assert rater_of(every).missing_column([]) is None
    assert rater_of(named).missing_column(["other"]) == "the column label"


VALUES = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(VALUES, VALUES | st.none()), min_size=1, max_size=5))
def test_a_weighted_sum_is_the_sum_of_its_parts_or_fails_with_those_that_worked(
    pairs: list[tuple[float, float | None]],
) -> None:
    parts = [
        Part(name=f"part{i}", rater=ItemRater(lambda _item, value=value: outcome_of(value)), weight=weight)
        for i, (weight, value) in enumerate(pairs)
    ]
    ((outcome,),) = Sum(parts).rate(groups_of([["a"]]))
    assert outcome.parts == {f"part{i}": value for i, (_, value) in enumerate(pairs) if value is not None}
    if any(value is None for _, value in pairs):
        assert outcome.value is None
        first = next(i for i, (_, value) in enumerate(pairs) if value is None)
        assert str(outcome.reason).startswith(f"part{first}: the reward returned None")
    else:
        assert outcome.value == pytest.approx(
            sum(weight * outcome.parts[f"part{i}"] for i, (weight, _) in enumerate(pairs))
        )


def test_a_sum_that_overflows_is_a_failure_and_keeps_its_parts() -> None:
    part = Part(name="huge", rater=ItemRater(lambda _item: outcome_of(1e308)), weight=100.0)
    ((outcome,),) = Sum([part]).rate(groups_of([["a"]]))
    assert outcome.value is None
    assert "inf" in str(outcome.reason)
    assert outcome.parts == {"huge": 1e308}
