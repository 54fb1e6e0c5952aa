from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_builders import Place, in_memory, plan_of

from rollmill.errors import CorruptDataError, JobError, PlanMismatchError
from rollmill.storage.plan import Plan, ShardRange
from rollmill.storage.runs import RunStore

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(min_size=1), JSON, max_size=4)


@given(identity=OBJECTS, tuning=OBJECTS, sizes=st.lists(st.integers(0, 5), max_size=4), group_size=st.integers(1, 9))
def test_a_plan_comes_back_as_it_was_written(
    identity: dict[str, Any], tuning: dict[str, Any], sizes: list[int], group_size: int
) -> None:
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    shards = tuple(
        ShardRange(index, start, start + size) for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
    )
    plan = Plan("run", identity, shards, group_size, tuning)
    assert Plan.from_json(plan.to_json(), "here") == plan
    reordered = replace(plan, identity=dict(reversed(identity.items())), tuning={})
    assert reordered.fingerprint == plan.fingerprint


@given(identity=OBJECTS.filter(bool), data=st.data())
def test_any_change_of_identity_is_refused_by_name(identity: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(identity)))
    value = data.draw(JSON.filter(lambda value: value != identity[name]))
    runs = RunStore(in_memory(), "run")
    runs.open_plan(plan_of(**identity))
    with pytest.raises(PlanMismatchError) as refusal:
        runs.open_plan(plan_of(**{**identity, name: value}))
    assert name in str(refusal.value)


def test_every_differing_field_is_named_with_both_values(place: Place) -> None:
    runs = RunStore(place.objects(), "run")
    runs.open_plan(plan_of(sampling={"temperature": 1.0, "seed": 0}, rewards=["a", "b"]))
    with pytest.raises(PlanMismatchError) as refusal:
        runs.open_plan(plan_of(num_prompts=6, sampling={"temperature": 0.5, "seed": 0}, rewards=["a", "c"]))
    message = str(refusal.value)
    for change in (
        "sampling.temperature was 1.0, now 0.5",
        'rewards[1] was "b", now "c"',
        "number of prompts was 5, now 6",
    ):
        assert change in message
    assert "seed" not in message
    assert "another run_id" in message
    assert "\n" not in message


def test_other_shards_of_the_same_prompts_continue_the_run_with_its_own_shards(place: Place) -> None:
    runs = RunStore(place.objects(), "run")
    first = runs.open_plan(plan_of(prompts_per_shard=2))
    again = runs.open_plan(replace(plan_of(prompts_per_shard=5), tuning={"max_batch_size": 7}))
    assert again.shards == first.shards
    assert again.fingerprint == first.fingerprint
    assert again.tuning == {"max_batch_size": 7}
    assert runs.load_plan() == first


def test_a_run_that_has_not_begun_has_no_plan(place: Place) -> None:
    assert RunStore(place.objects(), "run").load_plan() is None


def test_a_plan_that_was_edited_is_refused(place: Place) -> None:
    runs = RunStore(place.objects(), "run")
    plan = runs.open_plan(plan_of(seed=1))
    runs.objects.put("runs/run/plan.json", plan.to_json().replace('"seed": 1', '"seed": 2').encode())
    with pytest.raises(CorruptDataError, match=r"plan\.json was changed"):
        runs.load_plan()


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "a b", "-a", "a" * 201, "é", "a\n"])
def test_a_run_id_that_cannot_be_part_of_a_key_is_refused(run_id: str) -> None:
    with pytest.raises(JobError, match="run_id must begin with"):
        plan_of(run_id)


def test_shards_that_leave_prompts_out_are_refused() -> None:
    with pytest.raises(ValueError, match="must begin at prompt 2"):
        Plan("run", {}, (ShardRange(0, 0, 2), ShardRange(1, 3, 4)), 1)


def test_nan_in_an_identity_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        plan_of(temperature=float("nan"))
