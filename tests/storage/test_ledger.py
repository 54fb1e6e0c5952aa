from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_builders import (
    GROUP_SIZE,
    Place,
    failed_row,
    in_memory,
    plan_of,
    row_of,
    shard_prompts,
    shard_rows,
    table_of,
    write_rows,
    write_run,
)

from rollmill.errors import CorruptDataError
from rollmill.storage.ledger import Ledger, prove_run, prove_shard
from rollmill.storage.plan import Plan, ShardRange
from rollmill.storage.runs import RunStore
from rollmill.storage.schema import PROMPT_SCHEMA as PROMPTS

SHARD = ShardRange(0, 0, 3)
ROWS = [(prompt, sample) for prompt in range(3) for sample in range(GROUP_SIZE)]


def test_a_sound_run_balances(place: Place) -> None:
    plan = plan_of()
    runs = write_run(place.objects(), plan)
    ledger = _prove(runs, plan)
    assert ledger == Ledger(expected=15, ok=10, truncated=5, failed=0)


@pytest.mark.parametrize("prompts", [True, False])
def test_failed_rows_are_counted_as_failed(prompts: bool) -> None:
    plan = plan_of(num_prompts=2)
    runs = RunStore(in_memory(), "run")
    if prompts:
        runs.write_shard("prompts", 0, shard_prompts(plan, 0), schema=PROMPTS, file_metadata={}, stats={})
    write_rows(runs, 0, table_of([failed_row(0, sample) for sample in range(3)] + [row_of(1, s) for s in range(3)]))
    assert _prove(runs, plan) == Ledger(expected=6, ok=2, truncated=1, failed=3)


@given(rows=st.lists(st.sampled_from([*ROWS, (3, 0), (0, GROUP_SIZE)]), max_size=12))
def test_a_shard_balances_exactly_when_every_row_is_there_once(rows: list[tuple[int, int]]) -> None:
    table = table_of(row_of(prompt, sample) for prompt, sample in rows)
    ids = [f"p{prompt}" for prompt in range(3)]
    if sorted(rows) == ROWS:
        assert prove_shard(table, SHARD, GROUP_SIZE, "here", ids) == ids
        return
    with pytest.raises(CorruptDataError) as refusal:
        prove_shard(table, SHARD, GROUP_SIZE, "here", ids)
    message = str(refusal.value)
    assert ("missing" in message) == bool(set(ROWS) - set(rows))
    assert ("doubled" in message) == (len(set(rows)) < len(rows))
    assert ("not asked for" in message) == bool(set(rows) - set(ROWS))


@given(lost=st.sampled_from(ROWS))
def test_a_lost_row_is_named_even_when_the_prompts_are_not_stored(lost: tuple[int, int]) -> None:
    table = table_of(row_of(prompt, sample) for prompt, sample in ROWS if (prompt, sample) != lost)
    with pytest.raises(CorruptDataError, match=rf"here: missing \(prompt, sample\) \('p{lost[0]}', {lost[1]}\)"):
        prove_shard(table, SHARD, GROUP_SIZE, "here")


def test_a_lost_group_is_noticed_even_when_the_prompts_are_not_stored() -> None:
    table = table_of(row_of(prompt, sample) for prompt, sample in ROWS if prompt != 1)
    with pytest.raises(CorruptDataError, match="2 prompts instead of 3"):
        prove_shard(table, SHARD, GROUP_SIZE, "here")


def test_shards_that_are_not_committed_are_named(place: Place) -> None:
    plan = plan_of(num_prompts=20)
    runs = RunStore(place.objects(), "run")
    write_rows(runs, 1, shard_rows(plan, 1))
    with pytest.raises(CorruptDataError, match="shards 0, 2, 3, 4, 5 and 4 more are not committed; run the job again"):
        _prove(runs, plan)


def test_a_prompt_in_two_shards_is_named() -> None:
    plan = plan_of(num_prompts=2, prompts_per_shard=1)
    runs = RunStore(in_memory(), "run")
    for index in range(2):
        write_rows(runs, index, table_of(row_of(0, sample) for sample in range(3)))
    with pytest.raises(CorruptDataError, match="prompts p0 are in more than one shard"):
        _prove(runs, plan)


def test_rows_of_another_shards_prompts_are_named() -> None:
    plan = plan_of(num_prompts=2, prompts_per_shard=1)
    runs = write_run(in_memory(), plan, stage="first")
    for index in range(2):
        write_rows(runs, index, shard_rows(plan, 1 - index))
    with pytest.raises(CorruptDataError, match=r"shard 0 .*missing .*'p0', 0.*not asked for .*'p1', 0"):
        _prove(runs, plan)


def _prove(runs: RunStore, plan: Plan) -> Ledger:
    return prove_run(runs, plan, "generate", runs.finished("generate", [shard.index for shard in plan.shards]))
