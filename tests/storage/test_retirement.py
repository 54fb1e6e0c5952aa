"""`vacuum --keep-versions` takes the files of runs that are out of use, and nothing that anybody may still want."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from crashing import Crashed, Fate, HookedObjects
from hypothesis import given, settings
from hypothesis import strategies as st
from store_builders import Place, in_memory, plan_of, shard_rows, write_rows, write_run

from rollmill.errors import CorruptDataError, InputError, JobError, ObjectMissingError, RollmillError
from rollmill.storage.dataset import RolloutDataset
from rollmill.storage.log import LogEntry
from rollmill.storage.objects import Objects, StoredObject
from rollmill.storage.pins import pin
from rollmill.storage.plan import Plan
from rollmill.storage.publish import publish_run
from rollmill.storage.retirement import retirement_of
from rollmill.storage.runs import RunStore
from rollmill.storage.store import RolloutStore
from rollmill.storage.vacuum import VacuumReport, vacuum_store
from rollmill.storage.verify import verify_store
from rollmill.storage.version import DatasetVersion

REFUSALS = (JobError, ObjectMissingError, CorruptDataError)
"""What a publisher may meet: the retirement, files that are gone, shards that count as unfinished without them."""

DAY_0 = datetime(2020, 1, 1, tzinfo=UTC)


def nothing(what: str, key: str) -> None:
    """Let an operation pass."""
    assert what
    assert key is not None


class Calendar(HookedObjects):
    """Objects that were last changed on the day of the calendar on which they were."""

    def __init__(self, inner: Objects) -> None:
        super().__init__(inner, self._see)
        self.day = 0.0
        self.on_operation: Callable[[str, str], None] = nothing
        self._days: dict[str, float] = {}

    @property
    def now(self) -> datetime:
        return DAY_0 + timedelta(days=self.day)

    def scan(self, prefix: str) -> list[StoredObject]:
        found = super().scan(prefix)
        return [replace(stored, modified=DAY_0 + timedelta(days=self._days[stored.key])) for stored in found]

    def _see(self, moment: str, name: str, key: str) -> None:
        if moment == "after" and name in ("create", "put"):
            self._days[key] = self.day
        self.on_operation(f"{moment} {name}", key)


def store_of(objects: Objects) -> RolloutStore:
    store = RolloutStore(objects.url)
    store.objects = store.log.objects = objects
    return store


def plan(run_id: str) -> Plan:
    return plan_of(run_id, num_prompts=2)


def publish(objects: Objects, run_id: str, stage: str = "generate") -> DatasetVersion:
    write_run(objects, plan(run_id), stage)
    return publish_run(objects, plan(run_id), stage, policy_version=1)


def vacuum(objects: Calendar, keep_versions: int | None = 1, days: float = 7, dry_run: bool = False) -> VacuumReport:
    age = timedelta(days=days)
    return vacuum_store(objects, older_than=age, keep_versions=keep_versions, dry_run=dry_run, now=objects.now)


def calendar(*run_ids: str, days_between: float = 10) -> Calendar:
    """Return a store in memory with these runs, published one after the other, of which the last is old too."""
    objects = Calendar(in_memory())
    for run_id in run_ids:
        publish(objects, run_id)
        objects.day += days_between
    return objects


def is_whole(objects: Objects, entry: LogEntry) -> bool:
    """Whether a version can be read; one that cannot says that its run was retired."""
    try:
        rows = DatasetVersion(objects, entry).read()
    except ObjectMissingError as error:
        if "vacuum --keep-versions" in str(error):
            return False
        raise
    return bool(rows.num_rows == sum(file.rows for file in entry.files))


def test_only_the_runs_of_the_newest_versions_keep_their_files(place: Place) -> None:
    objects = Calendar(place.objects())
    for run_id in ("a", "b", "c"):
        publish(objects, run_id)
    objects.day = 30
    before = set(objects.list(""))
    report = vacuum(objects, keep_versions=2)
    assert report.retired == ("a",)
    assert {stored.key for stored in report.removed} == {key for key in before if key.startswith("data/a/")}
    assert set(objects.list("")) == {key for key in before if not key.startswith("data/a/")} | {"runs/a/retired.json"}
    store = store_of(objects)
    assert [version.number for version in store.versions()] == [1, 2, 3]
    assert [is_whole(objects, version.entry) for version in store.versions()] == [False, True, True]
    assert [entry.run_id for entry in store.latest().runs(window=5)] == ["c", "b"]
    assert verify_store(store).problems == ()
    again = vacuum(objects, keep_versions=2)
    assert (again.retired, again.removed) == ((), ())


def test_without_keep_versions_no_run_is_retired() -> None:
    objects = calendar("a", "b")
    assert vacuum(objects, keep_versions=None).removed == ()
    assert retirement_of(objects, "a") is None


def test_a_dry_run_names_the_same_runs_and_files_and_changes_nothing() -> None:
    objects = calendar("a", "b", "c")
    before = objects.list("")
    planned = vacuum(objects, dry_run=True)
    assert objects.list("") == before
    done = vacuum(objects)
    assert (planned.retired, planned.removed) == (done.retired, done.removed) == (("a", "b"), done.removed)


def test_a_retired_run_is_neither_continued_nor_read(place: Place) -> None:
    objects = Calendar(place.objects())
    publish(objects, "a")
    publish(objects, "b")
    objects.day = 30
    vacuum(objects)
    with pytest.raises(
        JobError, match=r"run a of .* was retired by vacuum --keep-versions at 2020-01-31.*another run_id"
    ):
        RunStore(objects, "a").open_plan(plan("a"))
    write_rows(RunStore(objects, "a"), 0, shard_rows(plan("a"), 0), "rescored")
    with pytest.raises(RollmillError, match="vacuum --keep-versions"):
        publish_run(objects, plan("a"), "rescored", policy_version=1, shards=[0])
    with pytest.raises(ObjectMissingError, match=r"with all of run a; read a newer version than 1"):
        list(RolloutDataset(store_of(objects), version=1))


def test_a_run_that_somebody_has_worked_on_lately_is_kept() -> None:
    objects = calendar("a", "b")
    write_rows(RunStore(objects, "a"), 0, shard_rows(plan("a"), 0), "rescored")
    assert vacuum(objects).retired == ()
    objects.day += 10
    assert vacuum(objects).retired == ("a",)


def test_a_run_that_was_never_published_is_kept() -> None:
    objects = calendar("a", "b")
    write_rows(RunStore(objects, "unfinished"), 0, shard_rows(plan("unfinished"), 0))
    objects.day += 100
    before = set(objects.list("data/unfinished/"))
    assert vacuum(objects).retired == ("a",)
    assert set(objects.list("data/unfinished/")) == before


def test_a_reader_of_several_runs_holds_all_of_them() -> None:
    objects = calendar("a", "b", "c", "d", "e")
    made = pin(objects, "trainer", 3, seconds=10**9, oldest=2)
    assert (made.oldest, made.version) == (2, 3)
    assert vacuum(objects).retired == ("a", "d")


@pytest.mark.parametrize("number", [0, -1])
def test_fewer_versions_than_one_are_refused(number: int) -> None:
    with pytest.raises(InputError, match="keep-versions must be at least 1"):
        vacuum(calendar("a"), keep_versions=number)


def test_a_damaged_retirement_stops_the_clean_up_and_is_a_problem() -> None:
    objects = calendar("a", "b")
    objects.put("runs/a/retired.json", b"{")
    before = objects.list("")
    objects.day += 10
    with pytest.raises(CorruptDataError, match=r"nothing was removed: .*retired\.json is not a run's retirement"):
        vacuum(objects)
    assert objects.list("") == before
    assert [problem.where for problem in verify_store(store_of(objects)).problems] == ["runs/a/retired.json"]


PUBLISHED = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["s", "t"]), st.integers(0, 4)), max_size=7)


@settings(max_examples=40)
@given(
    published=PUBLISHED,
    keep_versions=st.integers(1, 4),
    days=st.integers(1, 9),
    pinned=st.none() | st.tuples(st.integers(1, 7), st.integers(0, 3)),
)
def test_whatever_is_published_and_pinned_only_what_is_out_of_use_goes(
    published: list[tuple[str, str, int]], keep_versions: int, days: int, pinned: tuple[int, int] | None
) -> None:
    objects, moments = Calendar(in_memory()), {}
    last_work: dict[str, int] = {}
    for run_id, stage, pause in published:
        version = publish(objects, run_id, stage)
        moments.setdefault(version.number, objects.day)
        last_work[run_id] = objects.day
        objects.day += pause
    if not published:
        return
    pins: set[int] = set()
    if pinned and pinned[0] <= len(moments):
        oldest = max(pinned[0] - pinned[1], 1)
        pin(objects, "trainer", pinned[0], seconds=10**9, oldest=oldest)
        pins = set(range(oldest, pinned[0] + 1))
    entries = {version.number: version.entry for version in store_of(objects).versions()}
    limit = objects.day - days
    newest_then = sorted(number for number, day in moments.items() if day < limit)[-keep_versions:]
    wanted = {number for number, day in moments.items() if day >= limit} | set(newest_then) | pins
    runs_wanted = {entries[number].run_id for number in wanted}
    runs_wanted |= {run_id for run_id, day in last_work.items() if day >= limit}
    report = vacuum(objects, keep_versions, days)
    assert set(report.retired) == {entry.run_id for entry in entries.values()} - runs_wanted
    for entry in entries.values():
        assert is_whole(objects, entry) == (entry.run_id in runs_wanted)
    assert verify_store(store_of(objects)).problems == ()


@settings(max_examples=40)
@given(
    operation=st.integers(1, 40), moment=st.sampled_from(["before", "after"]), stage=st.sampled_from(["s", "generate"])
)
def test_who_publishes_while_a_vacuum_goes_is_refused_or_has_every_file(
    operation: int, moment: str, stage: str
) -> None:
    objects = calendar("a", "b")
    write_run(objects, plan("a"), "s")
    objects.day += 10
    seen: list[bool] = []

    def publish_meanwhile(what: str, key: str) -> None:
        seen.append(what.startswith(moment))
        if what.startswith(moment) and sum(seen) == operation:
            objects.on_operation = nothing
            with suppress(*REFUSALS):
                publish_run(objects, plan("a"), stage, policy_version=1)

    objects.on_operation = publish_meanwhile
    vacuum(objects)
    check_that_what_is_not_retired_is_whole(objects)


@settings(max_examples=40)
@given(operation=st.integers(1, 40), moment=st.sampled_from(["before", "after"]), crashed=st.booleans())
def test_a_vacuum_while_somebody_publishes_takes_nothing_of_the_new_version(
    operation: int, moment: str, crashed: bool
) -> None:
    """Also where an earlier publisher of the same died after its note, long ago."""
    objects = calendar("a", "b")
    write_run(objects, plan("a"), "s")
    if crashed:
        dying = HookedObjects(objects, Fate("log/", "before"))
        with pytest.raises(Crashed):
            publish_run(dying, plan("a"), "s", policy_version=1)
    objects.day += 10
    seen: list[bool] = []

    def vacuum_meanwhile(what: str, key: str) -> None:
        seen.append(what.startswith(moment))
        if what.startswith(moment) and sum(seen) == operation:
            objects.on_operation = nothing
            vacuum(objects)

    objects.on_operation = vacuum_meanwhile
    with suppress(*REFUSALS):
        publish_run(objects, plan("a"), "s", policy_version=1)
    objects.on_operation = nothing
    check_that_what_is_not_retired_is_whole(objects)


def check_that_what_is_not_retired_is_whole(objects: Objects) -> None:
    versions = store_of(objects).versions()
    newest = versions[-1]
    assert is_whole(objects, newest.entry), "a reader of the newest version does not get it"
    for version in versions:
        if retirement_of(objects, version.run_id) is None:
            assert is_whole(objects, version.entry)


@pytest.mark.parametrize("operation", range(1, 20))
def test_a_vacuum_that_was_killed_is_ended_by_the_next(operation: int) -> None:
    objects = calendar("a", "b", "c")
    with suppress(Crashed):
        vacuum_store(HookedObjects(objects, Fate(operation)), keep_versions=1, now=objects.now)
    check_that_what_is_not_retired_is_whole(objects)
    vacuum(objects)
    assert objects.list("data/a/") == objects.list("data/b/") == []
    assert verify_store(store_of(objects)).problems == ()


def test_a_publisher_that_was_held_up_for_long_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    objects, sleeper = in_memory(), plan("sleeper")
    write_run(objects, sleeper)
    hours = iter([0.0, 5.0, 5.0, 5.0])  # the note is made, and then the machine sleeps; noted again, in time
    monkeypatch.setattr("rollmill.storage.publish.time.time", lambda: 3600 * next(hours))
    version = publish_run(objects, sleeper, "generate", policy_version=1)
    assert list(hours) == []
    assert version.number == 1
    assert is_whole(objects, version.entry)
