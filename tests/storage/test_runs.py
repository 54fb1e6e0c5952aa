from __future__ import annotations

import hashlib
import io
import math
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_builders import (
    FILE_METADATA,
    Place,
    failed_row,
    in_memory,
    in_processes,
    loose_table_of,
    plan_of,
    row_of,
    shard_prompts,
    shard_rows,
    table_of,
    write_rows,
    write_run,
)

from rollmill.errors import CorruptDataError, ObjectMissingError
from rollmill.storage.objects import open_objects
from rollmill.storage.runs import RunStore
from rollmill.storage.schema import PROMPT_SCHEMA, RESPONSE_SCHEMA

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6))
    logprob = st.floats(max_value=0, allow_nan=False, allow_infinity=False, width=32)
    part = st.fixed_dictionaries({"name": TEXT, "value": st.none() | st.floats(allow_nan=False, width=64)})
    reward = draw(st.none() | st.floats(allow_nan=False, allow_infinity=False))
    return row_of(
        draw(st.integers(0, 9)),
        draw(st.integers(0, 9)),
        prompt_text=draw(TEXT),
        response_text=draw(TEXT),
        seed=draw(st.integers(0, 2**64 - 1)),
        policy_version=draw(st.integers(-(2**63), 2**63 - 1)),
        prompt_token_ids=draw(st.lists(st.integers(0, 2**31 - 1), max_size=6)),
        response_token_ids=tokens,
        logprobs=draw(st.lists(logprob, min_size=len(tokens), max_size=len(tokens))),
        reward=reward,
        reward_status="failed" if reward is None else "ok",
        reward_error=draw(st.none() | TEXT),
        reward_parts=draw(st.none() | st.lists(part, max_size=3)),
    )


@given(table=st.lists(rows() | st.builds(failed_row, st.integers(0, 9), st.integers(0, 9)), max_size=8).map(table_of))
def test_what_is_read_is_what_was_written(table: pa.Table) -> None:
    runs = RunStore(in_memory(), "run")
    write_rows(runs, 0, table)
    assert runs.read_shard("generate", 0).equals(table)


def test_a_shard_comes_back_as_it_was_written(place: Place) -> None:
    plan = plan_of()
    runs = write_run(place.objects(), plan)
    for shard in plan.shards:
        back = runs.read_shard("generate", shard.index)
        assert back.equals(shard_rows(plan, shard.index))
        assert back.schema.metadata == {name.encode(): value.encode() for name, value in FILE_METADATA.items()}
        assert runs.read_shard("prompts", shard.index).equals(shard_prompts(plan, shard.index))
    assert runs.read_shard("generate", 0, ["seed"]).column_names == ["seed"]


def test_a_marker_describes_its_file(place: Place) -> None:
    runs = RunStore(place.objects(), "run")
    table = shard_rows(plan_of(), 0)
    stats = {"num_tokens": 12, "seconds": 0.5}
    marker = runs.write_shard("generate", 0, table, schema=RESPONSE_SCHEMA, file_metadata=FILE_METADATA, stats=stats)
    data = runs.objects.get(marker.file)
    assert (marker.rows, marker.bytes) == (table.num_rows, len(data))
    assert marker.sha256 == hashlib.sha256(data).hexdigest()
    assert marker.stats == stats
    assert runs.marker("generate", 0) == marker
    assert runs.markers("generate", range(5)) == runs.finished("generate", range(5)) == {0: marker}


def test_columns_are_put_in_order_and_numbers_narrowed(place: Place) -> None:
    runs = RunStore(place.objects(), "run")
    loose = loose_table_of(row_of(0, sample) for sample in range(3))
    write_rows(runs, 0, loose.select(loose.column_names[::-1]))
    assert runs.read_shard("generate", 0).schema.equals(RESPONSE_SCHEMA)


def test_logprobs_are_split_by_byte_and_everything_is_compressed(place: Place) -> None:
    runs = RunStore(place.objects(), "run")
    marker = write_rows(runs, 0, shard_rows(plan_of(), 0))
    group = pq.ParquetFile(io.BytesIO(runs.objects.get(marker.file))).metadata.row_group(0)
    columns = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
    assert "BYTE_STREAM_SPLIT" in columns["logprobs.list.element"].encodings
    assert {column.compression for column in columns.values()} == {"ZSTD"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"logprobs": [-0.5]}, "token ids and logprobs differ in number"),
        ({"logprobs": [-0.5, math.nan]}, "a logprob is null or not finite"),
        ({"logprobs": [-math.inf, -0.5]}, "a logprob is null or not finite"),
        ({"logprobs": [None, -0.5]}, "a logprob is null or not finite"),
        ({"finish_reason": "eos"}, "finish_reason is not stop, length or error"),
        ({"finish_reason": "error", "error": "why"}, "a failed row holds tokens"),
        ({"finish_reason": "error", "response_token_ids": [], "logprobs": []}, "a failed row does not say why"),
        ({"response_token_ids": [], "logprobs": []}, "an answer has no tokens"),
        ({"reward": None}, "reward is null but its status is ok"),
        ({"reward_status": "failed"}, "reward is set but its status is not ok"),
        ({"reward_status": "great"}, "reward_status is unknown"),
        ({"reward": math.inf}, "reward is not finite"),
        ({"metadata": "[1]"}, "metadata is not a JSON object"),
        ({"metadata": "{"}, "metadata is not a JSON object"),
    ],
)
def test_a_row_that_contradicts_itself_is_named_and_nothing_is_stored(change: dict[str, Any], reason: str) -> None:
    runs = RunStore(in_memory(), "run")
    table = table_of([row_of(0, 0), row_of(0, 1, **change)])
    with pytest.raises(
        CorruptDataError, match=rf"shard 3 of generate of run run: row 1 \(prompt p0, sample 1\): {reason}"
    ):
        write_rows(runs, 3, table)
    assert runs.objects.list("") == []


@pytest.mark.parametrize(
    "table",
    [
        shard_rows(plan_of(), 0).drop_columns(["seed"]),
        shard_rows(plan_of(), 0).append_column("extra", pa.array([1] * 6)),
        loose_table_of([row_of(0, 0, prompt_id=None)]),
        loose_table_of([row_of(0, 0, sample_index=2**40)]),
    ],
    ids=["missing column", "extra column", "null where none may be", "number out of range"],
)
def test_a_table_that_does_not_fit_the_schema_is_refused(table: pa.Table) -> None:
    runs = RunStore(in_memory(), "run")
    with pytest.raises(CorruptDataError, match="shard 0 of generate"):
        write_rows(runs, 0, table)
    assert runs.objects.list("") == []


def test_responses_without_a_logprob_mode_are_refused() -> None:
    runs = RunStore(in_memory(), "run")
    with pytest.raises(ValueError, match="must name the logprob_mode"):
        runs.write_shard("generate", 0, shard_rows(plan_of(), 0), schema=RESPONSE_SCHEMA, file_metadata={}, stats={})


def test_a_shard_without_prompts_is_fine(place: Place) -> None:
    runs = RunStore(place.objects(), "run")
    marker = write_rows(runs, 0, RESPONSE_SCHEMA.empty_table())
    assert runs.finished("generate", [0]) == {0: marker}
    assert runs.read_shard("generate", 0).num_rows == 0


def test_racing_threads_commit_a_shard_once(place: Place) -> None:
    plan, objects, barrier = plan_of(), place.objects(), Barrier(4)

    def work(_: int) -> str:
        barrier.wait()
        return write_rows(RunStore(objects, "run"), 0, shard_rows(plan, 0)).file

    with ThreadPoolExecutor(4) as threads:
        winners = set(threads.map(work, range(4)))
    marker = RunStore(objects, "run").marker("generate", 0)
    assert marker is not None
    assert winners == {marker.file}
    assert len(objects.list("runs/")) == 1


def test_racing_processes_commit_a_shard_once(shared_place: Place) -> None:
    results = in_processes("write_one(objects)", shared_place.url, shared_place.storage_options, 2)
    marker = RunStore(shared_place.objects(), "run").marker("generate", 0)
    assert marker is not None
    assert results == [(0, marker.file)] * 2


@pytest.mark.parametrize("moment", ["put", "create"])
def test_a_worker_killed_before_its_commit_costs_nothing(shared_place: Place, moment: str) -> None:
    plan, objects = plan_of(), shared_place.objects()
    runs = RunStore(objects, "run")
    runs.open_plan(plan)
    call = f"write_one(die_before(objects, {moment!r}))"
    assert in_processes(call, shared_place.url, shared_place.storage_options, 1) == [(-signal.SIGKILL, "")]
    assert runs.finished("generate", [0]) == {}
    assert len(objects.list("data/")) == (moment == "create")
    again = write_rows(runs, 0, shard_rows(plan, 0))
    assert runs.finished("generate", [0]) == {0: again}
    assert runs.read_shard("generate", 0).equals(shard_rows(plan, 0))


@pytest.mark.parametrize("harm", ["gone", "short"])
def test_a_shard_whose_file_is_lost_is_made_again(place: Place, harm: str) -> None:
    plan = plan_of()
    runs = write_run(place.objects(), plan)
    _harm(runs, 1, harm)
    assert set(runs.finished("generate", range(3))) == {0, 2}
    again = write_rows(runs, 1, shard_rows(plan, 1))
    assert runs.finished("generate", range(3))[1] == again == runs.marker("generate", 1)
    assert runs.read_shard("generate", 1).equals(shard_rows(plan, 1))


def test_workers_that_find_the_same_loss_redo_it_once(place: Place) -> None:
    plan, objects, barrier = plan_of(), place.objects(), Barrier(3)
    runs = write_run(objects, plan)
    for loss in range(2):
        _harm(runs, 0, "gone")

        def work(_: int) -> str:
            barrier.wait()
            assert 0 not in RunStore(objects, "run").finished("generate", [0])
            barrier.wait()
            return write_rows(RunStore(objects, "run"), 0, shard_rows(plan, 0)).file

        with ThreadPoolExecutor(3) as threads:
            winners = set(threads.map(work, range(3)))
        marker = runs.finished("generate", [0])[0]
        assert winners == {marker.file}
        assert marker.generation == loss + 1


@pytest.mark.parametrize("harm", ["gone", "short", "changed"])
def test_a_damaged_file_is_named_and_never_returned(place: Place, harm: str) -> None:
    runs = write_run(place.objects(), plan_of())
    file = _harm(runs, 0, harm)
    with pytest.raises(ObjectMissingError if harm == "gone" else CorruptDataError, match=file):
        runs.read_shard("generate", 0)


def test_a_shard_that_was_never_committed_is_named(place: Place) -> None:
    with pytest.raises(ObjectMissingError, match="shard 7 of generate of run run is not committed"):
        RunStore(place.objects(), "run").read_shard("generate", 7)


@settings(max_examples=30)
@given(garbage=st.binary(max_size=60))
def test_a_damaged_marker_is_named(garbage: bytes) -> None:
    runs = RunStore(in_memory(), "run")
    runs.objects.put("runs/run/generate/00000.json", garbage)
    with pytest.raises(CorruptDataError, match=r"00000\.json is not a shard marker"):
        runs.marker("generate", 0)


def test_ten_thousand_shards_and_more_have_their_own_keys(tmp_path: Path) -> None:
    runs = RunStore(open_objects(str(tmp_path)), "run")
    indexes = [0, 99_999, 100_000, 1_000_000]
    for index in indexes:
        runs.write_shard(
            "prompts", index, shard_prompts(plan_of(), 0), schema=PROMPT_SCHEMA, file_metadata={}, stats={}
        )
    assert sorted(runs.finished("prompts", indexes)) == indexes


def _harm(runs: RunStore, index: int, harm: str) -> str:
    """Delete, cut or change the file of a shard, and return its key."""
    marker = runs.marker("generate", index)
    assert marker is not None
    data = runs.objects.get(marker.file)
    if harm == "gone":
        runs.objects.delete(marker.file)
    else:
        runs.objects.put(marker.file, data[:-9] if harm == "short" else data[:40] + bytes([data[40] ^ 1]) + data[41:])
    return marker.file
