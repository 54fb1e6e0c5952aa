from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_builders import Place, in_memory, plan_of, shard_rows, write_rows, write_run

from rollmill.errors import CorruptDataError, InputError, ObjectMissingError, StoreAccessError
from rollmill.storage.local_objects import LocalObjects
from rollmill.storage.objects import Objects
from rollmill.storage.pins import pin
from rollmill.storage.publish import publish_run
from rollmill.storage.runs import RunStore
from rollmill.storage.store import RolloutStore
from rollmill.storage.vacuum import vacuum_store
from rollmill.storage.verify import verify_store


def test_only_what_nothing_refers_to_is_removed(place: Place) -> None:
    objects = place.objects()
    orphans = _fill(objects)
    before = set(objects.list(""))
    report = vacuum_store(objects, now=_in_days(8))
    assert {stored.key for stored in report.removed} == orphans
    assert set(objects.list("")) == before - orphans
    assert report.num_bytes > 0
    assert verify_store(place.store()).problems == ()
    assert vacuum_store(objects, now=_in_days(8)).removed == ()


def test_what_is_young_is_kept_by_the_stores_own_clock(place: Place) -> None:
    objects = place.objects()
    _fill(objects)
    before = objects.list("")
    report = vacuum_store(objects, older_than=timedelta(hours=1))
    assert (report.removed, report.num_referenced) == ((), 0)
    assert report.num_young == len(objects.list("data/"))
    assert objects.list("") == before


def test_a_dry_run_says_the_same_and_removes_nothing(place: Place) -> None:
    objects = place.objects()
    orphans = _fill(objects)
    before = objects.list("")
    report = vacuum_store(objects, dry_run=True, now=_in_days(8))
    assert report.dry_run
    assert {stored.key for stored in report.removed} == orphans
    assert objects.list("") == before


@pytest.mark.parametrize("age", [timedelta(), timedelta(minutes=59), timedelta(days=-1)])
def test_an_age_that_endangers_running_workers_is_refused(age: timedelta) -> None:
    objects = in_memory()
    _fill(objects)
    with pytest.raises(InputError, match="older-than must be at least 1h"):
        vacuum_store(objects, older_than=age, now=_in_days(8))


def test_a_folder_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.parquet").write_bytes(b"precious")
    with pytest.raises(ObjectMissingError, match="there is no rollout store"):
        vacuum_store(LocalObjects(tmp_path), now=_in_days(8))
    assert (tmp_path / "data" / "mine.parquet").read_bytes() == b"precious"


def test_files_of_others_below_data_are_left_alone(place: Place) -> None:
    objects = place.objects()
    _fill(objects)
    objects.put("data/mine.parquet", b"precious")
    vacuum_store(objects, now=_in_days(8))
    assert objects.get("data/mine.parquet") == b"precious"


def test_what_a_killed_writer_left_in_the_temporary_folder_is_removed(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    _fill(objects)
    (tmp_path / "_tmp" / "left").write_bytes(b"half a shard")
    objects.put("_probe/left", b"x")
    kept = vacuum_store(objects, older_than=timedelta(hours=2))
    assert kept.removed == ()
    removed = vacuum_store(objects, now=_in_days(8)).removed
    assert {"_tmp/left", "_probe/left"} < {stored.key for stored in removed}
    assert list((tmp_path / "_tmp").iterdir()) == []


def test_the_markers_of_every_generation_hold_their_files(place: Place) -> None:
    objects, plan = place.objects(), plan_of()
    runs = write_run(objects, plan)
    first = runs.marker("generate", 0)
    assert first is not None
    whole = objects.get(first.file)
    objects.put(first.file, whole[:-1])
    second = write_rows(runs, 0, shard_rows(plan, 0))
    assert second.generation == 1
    assert vacuum_store(objects, now=_in_days(8)).removed == ()
    assert objects.size(first.file) == len(whole) - 1


@pytest.mark.parametrize(
    "harm",
    [
        lambda objects: objects.delete("log/000000000001.json"),
        lambda objects: objects.put("log/000000000001.json", b"{"),
        lambda objects: objects.put("runs/unfinished/generate/00000.json", b"{"),
        lambda objects: objects.put("pins/trainer.json", b"{"),
        lambda objects: pin(objects, "trainer", 9, seconds=10**7),
    ],
    ids=["log entry gone", "log entry damaged", "marker damaged", "pin damaged", "pin beyond the log"],
)
def test_nothing_is_removed_when_the_references_cannot_be_read(place: Place, harm: Callable[[Objects], None]) -> None:
    objects = place.objects()
    _fill(objects)
    harm(objects)
    before = objects.list("")
    with pytest.raises(CorruptDataError, match="nothing was removed: "):
        vacuum_store(objects, now=_in_days(8))
    assert objects.list("") == before


def test_a_pinned_version_keeps_every_file_and_is_reported(place: Place) -> None:
    objects = place.objects()
    _fill(objects)
    pin(objects, "trainer", 1, seconds=9 * 86400)
    pin(objects, "gone", 2, seconds=60)
    version = place.store().version(1)
    rows = version.read()
    report = vacuum_store(objects, now=_in_days(8))
    assert [(held.consumer, held.version) for held in report.pins] == [("trainer", 1)]
    assert version.read().equals(rows)


def test_a_store_of_a_newer_format_is_not_touched(place: Place) -> None:
    objects = place.objects()
    _fill(objects)
    objects.put("_format.json", json.dumps({"format_version": 99}).encode())
    before = objects.list("")
    with pytest.raises(StoreAccessError, match="has format 99, this rollmill reads format 1; upgrade rollmill"):
        vacuum_store(objects, now=_in_days(8))
    assert objects.list("") == before


def test_a_worker_that_was_held_up_for_long_stores_its_file_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    objects, plan = in_memory(), plan_of()
    hours = iter([0.0, 5.0, 5.0, 5.0])  # the first put takes five hours by the wall clock, the second no time
    monkeypatch.setattr("rollmill.storage.runs.time.time", lambda: 3600 * next(hours))
    marker = write_rows(RunStore(objects, "run"), 0, shard_rows(plan, 0))
    assert len(objects.list("data/")) == 2
    assert objects.size(marker.file) == marker.bytes
    assert objects.list("data/")[0] == marker.file or objects.list("data/")[1] == marker.file


@settings(max_examples=40)
@given(published=st.sets(st.integers(0, 2)), committed=st.sets(st.integers(0, 2)), orphans=st.lists(st.integers(0, 2)))
def test_whatever_a_store_holds_a_vacuum_changes_nothing_that_anyone_reads(
    published: set[int], committed: set[int], orphans: list[int]
) -> None:
    objects, plan = in_memory(), plan_of()
    runs = write_run(objects, plan, "whole")
    publish_run(objects, plan, "whole", policy_version=1)
    for index in sorted(committed | published):
        write_rows(runs, index, shard_rows(plan, index))
        if index in published:
            publish_run(objects, plan, "generate", policy_version=1, shards=[index])
    left = {_orphan(objects, index) for index in orphans}
    before = {key: objects.get(key) for key in objects.list("")}
    vacuum_store(objects, now=_in_days(8))
    assert {key: objects.get(key) for key in objects.list("")} == {
        key: data for key, data in before.items() if key not in left
    }
    assert verify_store(RolloutStore(objects.url)).problems == ()


def _fill(objects: Objects) -> set[str]:
    """Publish two runs, leave a third unfinished, and return the files that killed workers of all three left."""
    for run_id in ("first", "second"):
        write_run(objects, plan_of(run_id))
        publish_run(objects, plan_of(run_id), "generate", policy_version=1)
    runs = RunStore(objects, "unfinished")
    runs.open_plan(plan_of("unfinished"))
    write_rows(runs, 0, shard_rows(plan_of("unfinished"), 0))
    return {_orphan(objects, 0, run_id) for run_id in ("first", "unfinished", "never-begun")}


def _orphan(objects: Objects, index: int, run_id: str = "run") -> str:
    """Write a shard as a worker does that is killed before its commit; return the file's key."""
    runs = RunStore(objects, run_id)
    before = set(objects.list("data/"))
    create = objects.create

    def die(key: str, data: bytes) -> None:
        raise KeyboardInterrupt

    objects.create = die  # type: ignore[method-assign]
    try:
        with pytest.raises(KeyboardInterrupt):
            write_rows(runs, index, shard_rows(plan_of(run_id), index))
    finally:
        objects.create = create  # type: ignore[method-assign]
    [key] = set(objects.list("data/")) - before
    return key


def _in_days(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)
