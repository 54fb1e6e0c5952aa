"""How many tasks a run has, and how many of them work at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from flow_builders import job_of
from hypothesis import given
from hypothesis import strategies as st

from rollmill.flows.batches import batched
from rollmill.flows.shard_work import MAX_SHARDS_IN_FLIGHT, most_batches, shards_in_flight
from rollmill.flows.task_runs import MAX_TASK_RUNS
from rollmill.tasks.planning import cut


@given(st.integers(0, 3000), st.integers(1, 250))
def test_batches_hold_every_shard_once_in_order_and_are_never_too_many(num_shards: int, max_batches: int) -> None:
    batches = list(batched(cut(num_shards, 1), max_batches))
    assert [shard.index for batch in batches for shard in batch] == list(range(num_shards))
    assert len(batches) <= max_batches
    assert num_shards > max_batches or all(len(batch) == 1 for batch in batches)


@pytest.mark.parametrize(("every_shards", "tasks_a_batch"), [(None, 2), (1, 3)])
def test_a_run_of_many_shards_stays_within_its_task_runs(every_shards: int | None, tasks_a_batch: int) -> None:
    job = job_of(Path("policy"), Path("prompts.jsonl"), "store", publish={"every_shards": every_shards})
    batches = list(batched(cut(15_625, 1), most_batches(job)))
    plan_and_publish = 2
    assert tasks_a_batch * len(batches) + plan_and_publish <= MAX_TASK_RUNS


@pytest.mark.parametrize(
    ("rows_in_batch", "prompts_per_shard", "num_engines", "expected"),
    [(64, 16, 1, 2), (64, 16, 2, 4), (64, 4, 1, 5), (8, 1000, 1, 2), (4096, 1, 8, MAX_SHARDS_IN_FLIGHT)],
)
def test_enough_shards_are_in_flight_to_keep_every_batch_full(
    rows_in_batch: int, prompts_per_shard: int, num_engines: int, expected: int
) -> None:
    job = job_of(
        Path("policy"),
        Path("prompts.jsonl"),
        "store",
        engine__max_batch_size=rows_in_batch,
        shards__prompts_per_shard=prompts_per_shard,
    )
    assert shards_in_flight(job, num_engines) == expected
