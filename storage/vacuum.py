"""Removing what killed writers left behind and, when asked to, the files of runs that are out of use.

A data file is kept when any log entry or any shard marker, of whatever generation, names it, unless its run is retired;
so is everything that is young, for a worker may be about to commit it. Nothing is removed while a part of the log or a
pin cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from rollmill.errors import CorruptDataError, InputError, ObjectMissingError, StorageError
from rollmill.storage.concurrency import at_once
from rollmill.storage.layout import (
    check_format,
    markers_prefix,
    parse_data_key,
    parse_log_key,
    parse_marker_key,
)
from rollmill.storage.log import VersionLog
from rollmill.storage.objects import Objects, StoredObject
from rollmill.storage.pins import Pin, live_pins
from rollmill.storage.probe import store_time
from rollmill.storage.retirement import is_at_rest, retire, runs_out_of_use
from rollmill.storage.runs import RunStore

LEAST_AGE = timedelta(hours=1)
USUAL_AGE = timedelta(days=7)

Shard = tuple[str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumReport:
    """What was removed, or would be in a dry run; `num_young` objects were too young to be looked at.

    `retired` are the runs of which all files are among them, though versions name them.
    """

    removed: tuple[StoredObject, ...]
    retired: tuple[str, ...]
    num_referenced: int
    num_young: int
    pins: tuple[Pin, ...]
    dry_run: bool

    @property
    def num_bytes(self) -> int:
        return sum(stored.bytes for stored in self.removed)


def vacuum_store(
    objects: Objects,
    *,
    older_than: timedelta = USUAL_AGE,
    keep_versions: int | None = None,
    dry_run: bool = False,
    now: datetime | None = None,
) -> VacuumReport:
    """Remove data files that nothing refers to and what killed writers left of temporary files.

    Only what was last changed more than `older_than` before `now` (the store's own clock, when not given) is looked
    at. With `keep_versions`, published runs are retired too, and all their files removed: those that no pin holds,
    that nobody has worked on for that time, and whose versions were not among the so many newest at any moment of it.
    Raises InputError for an age below an hour and for fewer versions than 1, ObjectMissingError where there is no
    store, StoreAccessError for one of a newer format, and CorruptDataError, with nothing removed, when the log, a
    marker in question or a pin cannot be read.
    """
    if older_than < LEAST_AGE:
        raise InputError(f"older-than must be at least 1h, for workers may be about to commit; got {older_than}")
    if keep_versions is not None and keep_versions < 1:
        raise InputError(f"keep-versions must be at least 1, for readers begin with the newest; got {keep_versions}")
    if not check_format(objects):
        raise ObjectMissingError(f"there is no rollout store in {objects.url}; nothing was removed")
    now = now or store_time(objects)
    limit = now - older_than
    files, leftovers = objects.scan("data/"), objects.scan_leftovers()
    old = [stored for stored in files if stored.modified < limit]
    try:
        pins = live_pins(objects, now)
        referenced = _referenced(objects, old, pins)
        stored_runs = {shard[0] for stored in old if (shard := parse_data_key(stored.key))}
        retired = () if keep_versions is None else _retired(objects, stored_runs, keep_versions, limit, now, dry_run)
    except StorageError as error:
        raise CorruptDataError(f"nothing was removed: {error}") from error
    unreferenced = [
        stored
        for stored in old
        if (shard := parse_data_key(stored.key)) and (stored.key not in referenced or shard[0] in retired)
    ]
    removed = unreferenced + [stored for stored in leftovers if stored.modified < limit]
    if not dry_run:
        at_once(lambda stored: objects.delete(stored.key), removed)
    return VacuumReport(
        removed=tuple(removed),
        retired=retired,
        num_referenced=len(old) - len(unreferenced),
        num_young=sum(stored.modified >= limit for stored in (*files, *leftovers)),
        pins=tuple(pins),
        dry_run=dry_run,
    )


def _retired(
    objects: Objects, stored_runs: set[str], keep_versions: int, limit: datetime, now: datetime, dry_run: bool
) -> tuple[str, ...]:
    """Retire those of the runs that are out of use, and return them, without any that somebody now turns to."""
    runs = _out_of_use(objects, stored_runs, keep_versions, limit, now)
    if dry_run:
        return tuple(runs)
    retire(objects, runs, now)
    return tuple(_out_of_use(objects, set(runs), keep_versions, limit, now))


def _out_of_use(
    objects: Objects, run_ids: set[str], keep_versions: int, limit: datetime, now: datetime
) -> dict[str, int]:
    """Return those of the runs that are out of use and at rest, each with its newest version."""
    log, entries = objects.scan("log/"), VersionLog(objects).read_all()
    found = runs_out_of_use(entries, log, live_pins(objects, now), keep_versions, limit)
    chosen = [run_id for run_id in found if run_id in run_ids]
    at_rest = at_once(lambda run_id: is_at_rest(objects, run_id, limit), chosen)
    return {run_id: found[run_id] for run_id, rests in zip(chosen, at_rest, strict=True) if rests}


def _referenced(objects: Objects, files: Iterable[StoredObject], pins: Iterable[Pin]) -> set[str]:
    """Return what the log and the markers name, looking at the markers only of shards that the log does not explain.

    The files were listed before this, so a file that is committed from now on is either young or not among them.
    """
    published = _published(objects, pins)
    unexplained = {stored.key for stored in files} - published
    shards = {shard for key in unexplained if (shard := parse_data_key(key))}
    return published | set(at_once(lambda marker: _file_of(objects, marker), _markers(objects, shards)))


def _published(objects: Objects, pins: Iterable[Pin]) -> set[str]:
    numbers = [number for key in objects.list("log/") if (number := parse_log_key(key))]
    entries = VersionLog(objects).read_all()  # after the listing, for somebody may publish in between
    last = max([len(entries), *numbers])
    if last > len(entries):
        raise CorruptDataError(f"version {len(entries) + 1} of {objects.url} is missing from the log")
    for pin in pins:
        if pin.version > last:
            raise CorruptDataError(f"consumer {pin.consumer} reads version {pin.version}, the log ends at {last}")
    return {file.file for entry in entries for file in entry.files}


def _markers(objects: Objects, shards: set[Shard]) -> list[tuple[str, str, int, int]]:
    """Return (run id, stage, shard, generation) of every marker of these shards."""
    stages = sorted({(run_id, stage) for run_id, stage, _ in shards})
    listed = at_once(lambda stage: objects.list(markers_prefix(*stage)), stages)
    markers = [marker for keys in listed for key in keys if (marker := parse_marker_key(key))]
    return [marker for marker in markers if marker[:3] in shards]


def _file_of(objects: Objects, marker: tuple[str, str, int, int]) -> str:
    run_id, stage, index, generation = marker
    return RunStore(objects, run_id).read_marker(stage, index, generation).file
