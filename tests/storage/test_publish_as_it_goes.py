from __future__ import annotations

import json
from itertools import pairwise
from threading import Barrier, Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_builders import Place, in_memory, plan_of, shard_prompts, shard_rows, table_of, write_rows, write_run

from rollmill.errors import CorruptDataError
from rollmill.storage.log import VersionLog
from rollmill.storage.objects import Objects
from rollmill.storage.plan import Plan
from rollmill.storage.publish import publish_run
from rollmill.storage.runs import RunStore
from rollmill.storage.schema import PROMPT_SCHEMA
from rollmill.storage.store import RolloutStore
from rollmill.storage.verify import verify_store
from rollmill.storage.version import DatasetVersion

LONG = plan_of(num_prompts=40, prompts_per_shard=1)


def test_a_trainer_can_follow_a_run_from_its_first_shards_to_its_last(place: Place) -> None:
    objects, plan = place.objects(), plan_of()
    runs = RunStore(objects, plan.run_id)
    runs.open_plan(plan)
    seen = []
    for index in (2, 0, 1):
        _write(runs, plan, index)
        version = _publish(objects, plan, [index])
        assert version.entry == place.store().latest().entry
        seen.append((version.number, version.entry.complete, _shards(version), version.num_groups))
    assert seen == [(1, False, [2], 1), (2, False, [0, 2], 3), (3, True, [0, 1, 2], 5)]
    assert _publish(objects, plan).number == 3
    assert verify_store(place.store()).problems == ()
    assert [_shards(version) for version in place.store().versions()] == [[2], [0, 2], [0, 1, 2]]
    assert [entry.run_id for entry in version.runs(9)] == ["run"]


@settings(max_examples=60)
@given(steps=st.lists(st.sets(st.integers(0, 5), min_size=1) | st.just("other"), max_size=8))
def test_each_version_holds_what_was_published_before_and_what_was_added(steps: list[set[int] | str]) -> None:
    objects, plan = in_memory(), plan_of("long", num_prompts=6, prompts_per_shard=1)
    write_run(objects, plan)
    published: set[int] = set()
    for number, step in enumerate(steps):
        if isinstance(step, str):
            write_run(objects, plan_of(f"other-{number}"), prompts=False)
            _publish(objects, plan_of(f"other-{number}"))
            continue
        published |= step
        version = _publish(objects, plan, sorted(step))
        assert _shards(version) == sorted(published)
        assert version.entry.complete == (len(published) == 6)
        assert version.read(["prompt_id"])["prompt_id"].unique().to_pylist() == [f"p{n}" for n in sorted(published)]
        assert RolloutStore(objects.url).version(version.number).entry == version.entry
    whole = _publish(objects, plan)
    assert _shards(whole) == list(range(6))
    assert whole.entry.complete
    assert verify_store(RolloutStore(objects.url)).problems == ()
    store = RolloutStore(objects.url)
    assert [version.entry for version in store.versions()] == [
        store.version(number + 1).entry for number in range(store.latest().number)
    ]


def test_shards_that_are_published_already_make_no_version(place: Place) -> None:
    objects, plan = place.objects(), plan_of()
    write_run(objects, plan)
    first = _publish(objects, plan, [0, 1])
    before = objects.list("")
    assert _publish(objects, plan, [1]).entry == first.entry
    assert _publish(objects, plan, [0, 1]).entry == first.entry
    assert objects.list("") == before


def test_an_entry_lists_only_what_it_adds() -> None:
    objects = in_memory()
    write_run(objects, LONG)
    sizes = []
    for index in range(40):
        number = _publish(objects, LONG, [index]).number
        stored = json.loads(objects.get(f"log/{number:012d}.json"))
        sizes.append(len(stored["files"]))
    assert sizes == [1] * 33 + [34] + [1] * 6  # the files are listed anew once, so that no reader joins many entries
    assert _shards(RolloutStore(objects.url).latest()) == list(range(40))


def test_a_part_must_be_committed_and_balance(place: Place) -> None:
    objects, plan = place.objects(), plan_of()
    runs = RunStore(objects, plan.run_id)
    runs.open_plan(plan)
    _write(runs, plan, 0)
    write_rows(runs, 1, table_of(shard_rows(plan, 1).to_pylist()[:-1]))
    with pytest.raises(CorruptDataError, match="shards 2 are not committed"):
        _publish(objects, plan, [0, 2])
    with pytest.raises(CorruptDataError, match=r"shard 1 of stage generate of run run.* missing"):
        _publish(objects, plan, [0, 1])
    assert objects.list("log/") == []
    assert _publish(objects, plan, [0]).num_groups == 2


@pytest.mark.parametrize("shards", [[], [3], [0, -1]])
def test_shards_that_the_plan_does_not_have_are_refused(shards: list[int]) -> None:
    objects, plan = in_memory(), plan_of()
    write_run(objects, plan)
    with pytest.raises(ValueError, match="has shards 0 to 2, got"):
        _publish(objects, plan, shards)


def test_a_file_lost_after_its_part_was_published_is_replaced_at_the_end(place: Place) -> None:
    objects, plan = place.objects(), plan_of()
    runs = write_run(objects, plan)
    part = _publish(objects, plan, [0, 1])
    objects.delete(part.files[0].file)
    again = write_rows(runs, 0, shard_rows(plan, 0))
    whole = _publish(objects, plan)
    assert whole.files[0].file == again.file
    assert whole.read().num_rows == 15
    assert verify_store(place.store()).problems == ()


def test_workers_that_publish_parts_at_once_lose_none(place: Place) -> None:
    plan = plan_of(num_prompts=6, prompts_per_shard=1)
    write_run(place.objects(), plan)
    barrier = Barrier(3)

    def publish(shards: list[int]) -> None:
        barrier.wait()
        _publish(place.objects(), plan, shards)

    threads = [Thread(target=publish, args=([worker, worker + 3],)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = _publish(place.objects(), plan)
    assert _shards(whole) == list(range(6))
    versions = place.store().versions()
    assert all(set(_shards(earlier)) < set(_shards(later)) for earlier, later in pairwise(versions))
    assert verify_store(place.store()).problems == ()


def test_an_entry_whose_base_is_gone_is_named(place: Place) -> None:
    objects, plan = place.objects(), plan_of()
    write_run(objects, plan)
    _publish(objects, plan, [0])
    _publish(objects, plan, [1])
    objects.delete("log/000000000001.json")
    with pytest.raises(CorruptDataError, match=r"log/000000000001\.json is missing from the log"):
        VersionLog(objects).read(2)
    assert {problem.where for problem in verify_store(place.store()).problems} >= {"log/000000000001.json"}


def _write(runs: RunStore, plan: Plan, index: int) -> None:
    runs.write_shard("prompts", index, shard_prompts(plan, index), schema=PROMPT_SCHEMA, file_metadata={}, stats={})
    write_rows(runs, index, shard_rows(plan, index))


def _publish(objects: Objects, plan: Plan, shards: list[int] | None = None) -> DatasetVersion:
    return publish_run(objects, plan, "generate", policy_version=1, shards=shards)


def _shards(version: DatasetVersion) -> list[int]:
    return [file.shard for file in version.files]
