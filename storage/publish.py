"""Publishing a run: the ledger first, then one new entry in the log.

An entry lists the files of its own run only, and names the newest entry of another run as `previous`. So a version
holds the newest run and, through that chain, every run before it: a reader of the newest run needs one small object,
a reader of a window of k runs needs k, nothing that is in the log already is written again, and the log grows with
what is added. A run that is published again, with more shards or rescored under another stage, gets a new entry that
stands for the whole run, and readers of a window skip its older ones. Earlier versions stay as they were. The entry of
a run that is published as it goes lists only the files that are new, and names the entries that it adds to.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from rollmill.errors import CorruptDataError, ObjectExistsError
from rollmill.storage.concurrency import at_once
from rollmill.storage.layout import claim_format, intent_key
from rollmill.storage.ledger import prove_run
from rollmill.storage.log import DatasetFile, LogEntry, VersionLog, operation_id_of
from rollmill.storage.objects import Objects
from rollmill.storage.plan import Plan, ShardRange
from rollmill.storage.runs import RunStore, ShardMarker
from rollmill.storage.version import DatasetVersion

logger = logging.getLogger(__name__)

_MAX_STEPS_BACK = 16


def publish_run(
    objects: Objects, plan: Plan, stage: str, *, policy_version: int, shards: Iterable[int] | None = None
) -> DatasetVersion:
    """Make the committed shards of a run's stage the newest dataset version, and return it.

    With `shards`, the indexes of committed shards, only these are added to what of the run is published already, so
    that a trainer can follow a long run; the ledger is proved for them. Without, the run must be whole, and all of
    it is proved. Publishing the same files again returns the version that they already have. Of two runs that are
    published at once both succeed, one after the other. Raises CorruptDataError when the ledger does not balance or
    a shard is not committed, and ValueError for shards that the plan does not have.
    """
    claim_format(objects)
    chosen = None if shards is None else frozenset(shards)
    entry = None
    while entry is None:
        entry = _publish_once(objects, plan, stage, policy_version, chosen)
    return DatasetVersion(objects, entry)


def _publish_once(
    objects: Objects, plan: Plan, stage: str, policy_version: int, shards: frozenset[int] | None
) -> LogEntry | None:
    """Return the new or existing entry, or None when another worker has just published other parts of this run."""
    log = VersionLog(objects)
    latest = log.latest()
    base = _base(log, latest, plan, stage, policy_version)
    known = {file.shard for file in base.files} if base else set()
    wanted_shards = _chosen(plan, shards) | known
    if shards is None or len(wanted_shards) == len(plan.shards):
        files = _proven_files(objects, plan, stage, policy_version, plan.shards)
    elif base and wanted_shards == known:
        return base
    else:
        new = [plan.shards[index] for index in sorted(wanted_shards - known)]
        files = (*(base.files if base else ()), *_proven_files(objects, plan, stage, policy_version, new))
    wanted = _unnumbered(plan, stage, policy_version, tuple(sorted(files, key=lambda file: file.shard)))
    return _published_before(log, wanted, latest) or _append(log, wanted.adding_to(base) if base else wanted, latest)


def _chosen(plan: Plan, shards: frozenset[int] | None) -> frozenset[int]:
    everything = frozenset(range(len(plan.shards)))
    chosen = everything if shards is None else shards
    if shards is not None and (not chosen or chosen - everything):
        raise ValueError(f"run {plan.run_id} has shards 0 to {len(plan.shards) - 1}, got {sorted(chosen)[:5]}")
    return chosen


def _base(log: VersionLog, latest: LogEntry | None, plan: Plan, stage: str, policy_version: int) -> LogEntry | None:
    """Return the newest entry of this very stage of the run, if it is among the last few of the log."""
    entry, steps = latest, 0
    while entry and entry.run_id != plan.run_id and entry.previous and steps < _MAX_STEPS_BACK:
        entry, steps = log.read(entry.previous), steps + 1
    wanted = (plan.run_id, stage, policy_version, plan.fingerprint)
    if entry and (entry.run_id, entry.stage, entry.policy_version, entry.fingerprint) == wanted:
        return entry
    return None


def _proven_files(
    objects: Objects, plan: Plan, stage: str, policy_version: int, shards: Sequence[ShardRange]
) -> tuple[DatasetFile, ...]:
    runs = RunStore(objects, plan.run_id)
    markers = runs.finished(stage, [shard.index for shard in shards])
    prove_run(runs, plan, stage, markers, shards)
    return tuple(_dataset_file(plan, stage, markers[shard.index], policy_version) for shard in shards)


def _unnumbered(plan: Plan, stage: str, policy_version: int, files: tuple[DatasetFile, ...]) -> LogEntry:
    return LogEntry(
        number=0,
        parent=0,
        previous=0,
        operation_id=operation_id_of(plan.run_id, stage, policy_version, files),
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        run_id=plan.run_id,
        stage=stage,
        policy_version=policy_version,
        group_size=plan.group_size,
        fingerprint=plan.fingerprint,
        files=files,
        complete=len(files) == len(plan.shards),
    )


def _append(log: VersionLog, wanted: LogEntry, latest: LogEntry | None) -> LogEntry | None:
    """Append after `latest`, or after whatever others append in the meantime.

    Returns None for a part of a run of which another part came in between: it has to stand for both.
    """
    while True:
        entry = _after(latest, wanted)
        try:
            log.append(entry)
        except ObjectExistsError:
            taken = log.read(entry.number)
            if taken is None:
                continue
            if taken.operation_id == wanted.operation_id or _holds(taken, wanted):
                return taken
            logger.warning(
                "version %d was published by run %s in the meantime; rebased run %s onto it as version %d",
                taken.number, taken.run_id, wanted.run_id, taken.number + 1,
            )  # fmt: skip
            if taken.run_id == wanted.run_id and not wanted.complete:
                return None
            latest = taken
        else:
            return entry


def _holds(taken: LogEntry, wanted: LogEntry) -> bool:
    """Whether another worker of the same run has just published these files, and more of the run."""
    return taken.run_id == wanted.run_id and set(taken.files) >= set(wanted.files)


def _after(latest: LogEntry | None, wanted: LogEntry) -> LogEntry:
    if latest is None:
        return replace(wanted, number=1)
    previous = latest.previous if latest.run_id == wanted.run_id else latest.number
    return replace(wanted, number=latest.number + 1, parent=latest.number, previous=previous)


def _published_before(log: VersionLog, wanted: LogEntry, latest: LogEntry | None) -> LogEntry | None:
    """Return the entry of this very operation, if there is one.

    Whoever publishes first notes beforehand how long the log was, so only what came after needs to be searched.
    """
    key = intent_key(wanted.run_id, wanted.operation_id)
    length = 0 if latest is None else latest.number
    try:
        log.objects.create(key, json.dumps({"after": length, "at": wanted.created_at}).encode())
    except ObjectExistsError:
        entries = at_once(log.read, range(_length_before(log.objects, key) + 1, length + 1))
        return next((entry for entry in entries if entry and entry.operation_id == wanted.operation_id), None)
    return None


def _length_before(objects: Objects, key: str) -> int:
    try:
        return int(json.loads(objects.get(key))["after"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{objects.where(key)} does not say where its publish began; delete it") from error


def _dataset_file(plan: Plan, stage: str, marker: ShardMarker, policy_version: int) -> DatasetFile:
    return DatasetFile(
        file=marker.file,
        rows=marker.rows,
        bytes=marker.bytes,
        sha256=marker.sha256,
        run_id=plan.run_id,
        stage=stage,
        shard=marker.index,
        policy_version=policy_version,
    )
