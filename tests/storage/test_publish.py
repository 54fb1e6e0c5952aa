from __future__ import annotations

import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import datetime
from threading import Barrier

import pytest
from store_builders import Place, in_memory, in_processes, plan_of, shard_rows, write_rows, write_run

from rollmill.errors import CorruptDataError, StoreAccessError
from rollmill.storage.log import VersionLog
from rollmill.storage.objects import Objects
from rollmill.storage.publish import publish_run
from rollmill.storage.version import DatasetVersion


def test_a_version_says_what_it_holds(place: Place) -> None:
    plan = plan_of()
    runs = write_run(place.objects(), plan)
    version = publish_run(place.objects(), plan, "generate", policy_version=1)
    markers = runs.markers("generate", range(3))
    assert [asdict(file) for file in version.files] == [
        {
            "file": marker.file,
            "rows": marker.rows,
            "bytes": marker.bytes,
            "sha256": marker.sha256,
            "run_id": "run",
            "stage": "generate",
            "shard": index,
            "policy_version": 1,
        }
        for index, marker in sorted(markers.items())
    ]
    assert (version.number, version.entry.parent, version.policy_version) == (1, 0, 1)
    assert (version.num_rows, version.num_groups) == (15, 5)
    assert datetime.fromisoformat(version.created_at).utcoffset() is not None
    assert place.objects().get("HEAD") == b"1"


def test_publishing_twice_gives_the_same_version(place: Place) -> None:
    objects = place.objects()
    first = _published(objects, "a")
    second = _published(objects, "b")
    assert (first.number, second.number) == (1, 2)
    before = objects.list("")
    for run_id, version in (("a", first), ("b", second), ("a", first)):
        assert publish_run(objects, plan_of(run_id), "generate", policy_version=1).entry == version.entry
    assert objects.list("") == before


def test_an_incomplete_run_is_not_published(place: Place) -> None:
    objects, plan = place.objects(), plan_of()
    runs = write_run(objects, plan)
    marker = runs.marker("generate", 1)
    assert marker is not None
    objects.delete(marker.file)
    with pytest.raises(CorruptDataError, match="shards 1 are not committed"):
        publish_run(objects, plan, "generate", policy_version=1)
    assert objects.list("log/") == []


def test_a_publisher_that_comes_second_is_rebased_and_says_so(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    objects, others = place.objects(), place.objects()
    for run_id in ("mine", "theirs"):
        write_run(objects, plan_of(run_id))
    create = objects.create

    def create_after_another(key: str, data: bytes) -> None:
        if key == "log/000000000001.json":
            publish_run(others, plan_of("theirs"), "generate", policy_version=1)
        create(key, data)

    objects.create = create_after_another  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        version = publish_run(objects, plan_of("mine"), "generate", policy_version=1)
    assert (version.number, version.entry.parent) == (2, 1)
    assert [entry.run_id for entry in version.runs(9)] == ["mine", "theirs"]
    assert "version 1 was published by run theirs in the meantime; rebased run mine onto it as version 2" in caplog.text


def test_publishers_at_once_all_succeed(place: Place) -> None:
    objects = place.objects()
    run_ids = ["a", "b", "c"]
    for run_id in run_ids:
        write_run(objects, plan_of(run_id))
    barrier = Barrier(len(run_ids))

    def publish(run_id: str) -> int:
        barrier.wait()
        return publish_run(objects, plan_of(run_id), "generate", policy_version=1).number

    with ThreadPoolExecutor(len(run_ids)) as threads:
        numbers = list(threads.map(publish, run_ids))
    assert sorted(numbers) == [1, 2, 3]
    assert [version.entry.run_id for version in place.store().versions()] == [
        run_ids[numbers.index(number)] for number in (1, 2, 3)
    ]


def test_processes_that_publish_the_same_run_at_once_make_one_version(shared_place: Place) -> None:
    write_run(shared_place.objects(), plan_of())
    results = in_processes("publish_one(objects, 'run')", shared_place.url, shared_place.storage_options, 2)
    assert results == [(0, "1"), (0, "1")]
    assert shared_place.objects().list("log/") == ["log/000000000001.json"]


@pytest.mark.parametrize(("method", "beginning"), [("create", "log/"), ("put", "HEAD")])
def test_a_publisher_killed_half_way_is_continued(shared_place: Place, method: str, beginning: str) -> None:
    objects = shared_place.objects()
    _published(objects, "before")
    write_run(objects, plan_of())
    call = f"publish_one(die_before(objects, {method!r}, {beginning!r}), 'run')"
    assert in_processes(call, shared_place.url, shared_place.storage_options, 1) == [(-signal.SIGKILL, "")]
    assert publish_run(objects, plan_of(), "generate", policy_version=1).number == 2
    assert [version.run_id for version in shared_place.store().versions()] == ["before", "run"]


def test_a_run_published_after_a_killed_publisher_and_another_run_is_found_again() -> None:
    objects = in_memory()
    write_run(objects, plan_of())
    put = objects.put

    def fail(key: str, data: bytes) -> None:
        if key == "HEAD":
            raise StoreAccessError("gone")
        put(key, data)

    objects.put = fail  # type: ignore[method-assign]
    with pytest.raises(StoreAccessError):
        publish_run(objects, plan_of(), "generate", policy_version=1)
    objects.put = put  # type: ignore[method-assign]
    assert _published(objects, "other").number == 2
    assert publish_run(objects, plan_of(), "generate", policy_version=1).number == 1


def test_a_rescored_run_takes_the_place_of_its_earlier_self(place: Place) -> None:
    objects, plan = place.objects(), plan_of("a")
    _published(objects, "a")
    _published(objects, "b")
    runs = write_run(objects, plan, "score-1", reward=0.5)
    version = publish_run(objects, plan, "score-1", policy_version=1)
    assert version.number == 3
    assert [(entry.run_id, entry.stage) for entry in version.runs(9)] == [("a", "score-1"), ("b", "generate")]
    assert set(version.read(["reward"])["reward"].to_pylist()) == {0.5}
    assert version.read(["run_id"], window=2)["run_id"].to_pylist() == ["a"] * 15 + ["b"] * 15
    assert [entry.stage for entry in place.store().version(2).runs(9)] == ["generate", "generate"]
    assert runs.marker("generate", 0) is not None


def test_a_shard_made_again_is_published_anew_and_the_old_version_stays(place: Place) -> None:
    objects, plan = place.objects(), plan_of()
    first = _published(objects, "run")
    objects.delete(first.files[0].file)
    write_rows(write_run(objects, plan), 0, shard_rows(plan, 0))
    second = publish_run(objects, plan, "generate", policy_version=1)
    assert second.number == 2
    assert second.files[1:] == first.files[1:]
    assert second.read().num_rows == 15
    assert place.store().version(1).files == first.files


def test_an_entry_does_not_grow_with_the_runs_before_it() -> None:
    objects = in_memory()
    sizes = []
    for number in range(1, 13):
        _published(objects, f"run-{number:03d}")
        sizes.append(objects.size(f"log/{number:012d}.json"))
    assert max(size for size in sizes if size) - min(size for size in sizes if size) < 10


def test_a_hint_may_be_old_wrong_or_missing(place: Place) -> None:
    objects = place.objects()
    for run_id in ("a", "b", "c"):
        _published(objects, run_id)
    log = VersionLog(objects)
    for hint in (b"1", b"0", b"99", b"-1", b"nonsense", b""):
        objects.put("HEAD", hint)
        latest = log.latest()
        assert latest is not None
        assert latest.number == 3
    objects.delete("HEAD")
    assert log.latest() == latest


def _published(objects: Objects, run_id: str) -> DatasetVersion:
    write_run(objects, plan_of(run_id))
    return publish_run(objects, plan_of(run_id), "generate", policy_version=1)
