"""Retiring runs that no recent version holds: their files go, and what the log, plan and markers say of them stays.

A run is retired for ever by one object, `runs/<run_id>/retired.json`, created before the first of its files is removed.
Whoever publishes notes that first and then looks for this object; whoever retires creates it first and then looks for
such notes. So of the two at least one sees the other: the publisher stops, or the files stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from rollmill.errors import CorruptDataError, JobError, ObjectExistsError, ObjectMissingError
from rollmill.storage.layout import data_prefix_of_run, parse_data_key, parse_log_key, retired_key, run_prefix
from rollmill.storage.log import LogEntry
from rollmill.storage.objects import Objects, StoredObject
from rollmill.storage.pins import Pin


@dataclass(frozen=True, slots=True, kw_only=True)
class Retirement:
    """Run `run_id`, whose newest version was `version`, was retired at `retired_at` (UTC, ISO 8601)."""

    run_id: str
    version: int
    retired_at: str


def retirement_of(objects: Objects, run_id: str) -> Retirement | None:
    """Return when and from which version a run was retired, or None. Raises CorruptDataError for a damaged note."""
    try:
        text = objects.get(retired_key(run_id))
    except ObjectMissingError:
        return None
    try:
        found = Retirement(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise CorruptDataError(f"{objects.where(retired_key(run_id))} is not a run's retirement: {error!r}") from error
    if found.run_id != run_id:
        raise CorruptDataError(f"{objects.where(retired_key(run_id))} is of run {found.run_id}")
    return found


def refuse_retired(objects: Objects, run_id: str) -> None:
    """Raise JobError when the run was retired, so that nobody adds to what has lost its files."""
    found = retirement_of(objects, run_id)
    if found is not None:
        raise JobError(
            f"run {run_id} of {objects.url} was retired by vacuum --keep-versions at {found.retired_at}, and its files "
            "are removed; give the job another run_id"
        )


def missing_because_retired(objects: Objects, key: str) -> ObjectMissingError | None:
    """Return the error for a data file that is missing for this reason, or None when its run was not retired."""
    named = parse_data_key(key)
    found = retirement_of(objects, named[0]) if named else None
    if found is None:
        return None
    return ObjectMissingError(
        f"{objects.where(key)} was removed by vacuum --keep-versions at {found.retired_at}, with all of run "
        f"{found.run_id}; read a newer version than {found.version}"
    )


def runs_out_of_use(
    entries: Sequence[LogEntry], log: Iterable[StoredObject], pins: Iterable[Pin], keep_versions: int, limit: datetime
) -> dict[str, int]:
    """Return the published runs, each with its newest version, that nobody is to read any more.

    Kept are the runs of the versions that were among the `keep_versions` newest at `limit` or later, which is what a
    reader may have begun with since then, and those of the versions that a pin holds.
    """
    published = {number: stored.modified for stored in log if (number := parse_log_key(stored.key))}
    old = sorted(number for number, moment in published.items() if moment < limit)
    kept = {entry.number for entry in entries} - set(old[:-keep_versions])
    kept |= {number for pin in pins for number in range(pin.oldest, pin.version + 1)}
    newest = {entry.run_id: entry.number for entry in entries}
    in_use = {entry.run_id for entry in entries if entry.number in kept}
    return {run_id: number for run_id, number in newest.items() if run_id not in in_use}


def is_at_rest(objects: Objects, run_id: str, limit: datetime) -> bool:
    """Whether nobody has written anything of the run since `limit`, by the store's own clock."""
    written = (*objects.scan(run_prefix(run_id)), *objects.scan(data_prefix_of_run(run_id)))
    return all(stored.modified < limit for stored in written if stored.key != retired_key(run_id))


def retire(objects: Objects, runs: Mapping[str, int], now: datetime) -> None:
    """Note for ever that these runs, each with its newest version, are retired."""
    moment = now.isoformat(timespec="milliseconds")
    for run_id, version in runs.items():
        made = Retirement(run_id=run_id, version=version, retired_at=moment)
        try:
            objects.create(retired_key(run_id), json.dumps(asdict(made)).encode())
        except ObjectExistsError:
            retirement_of(objects, run_id)  # an earlier clean-up began; a damaged note stops this one
