"""Publishing a run: the ledger first, then one new entry in the log.

An entry lists the files of its own run only, and names the newest entry of another run as `previous`. So a version
holds the newest run and, through that chain, every run before it: a reader of the newest run needs one small object,
a reader of a window of k runs needs k, nothing that is in the log already is written again, and the log grows with
what is added. A run that is published again, with more shards or rescored under another stage, gets a new entry that
stands for the whole run, and readers of a window skip its older ones. Earlier versions stay as they were. The entry of
a run that is published as it goes lists only the files that are new, and names the entries that it adds to.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from rollmill.errors import ObjectExistsError
from rollmill.storage.intent import Intent
from rollmill.storage.layout import claim_format
from rollmill.storage.ledger import prove_run, refuse_absent
from rollmill.storage.log import DatasetFile, LogEntry, VersionLog, operation_id_of
from rollmill.storage.objects import Objects
from rollmill.storage.plan import Plan
from rollmill.storage.runs import RunStore, ShardMarker
from rollmill.storage.version import DatasetVersion

logger = logging.getLogger(__name__)

_MAX_STEPS_BACK = 16
_SECONDS_TO_APPEND = 1800.0  # half of the least age of what `vacuum` retires


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


def published_entry(objects: Objects, run_id: str) -> LogEntry | None:
    """Return a run's newest log entry, if it is among those of the last few runs."""
    log = VersionLog(objects)
    return _newest_of(log, log.latest(), run_id)


def _publish_once(
    objects: Objects, plan: Plan, stage: str, policy_version: int, shards: frozenset[int] | None
) -> LogEntry | None:
    """Return the new or existing entry, or None when all of it must be done again.

    That is when another worker has just published other parts of this run, or when this one was held up for so long
    that its run may have been retired meanwhile.
    """
    log = VersionLog(objects)
    latest = log.latest()
    base = _base(log, latest, plan, stage, policy_version)
    listed = {file.shard: file for file in base.files} if base else {}
    chosen = _chosen(plan, shards) | set(listed)
    whole = shards is None or len(chosen) == len(plan.shards)
    if base and not whole and chosen == set(listed):
        return base
    new = [shard for shard in plan.shards if whole or shard.index in chosen - set(listed)]
    runs = RunStore(objects, plan.run_id)
    markers = runs.finished(stage, [shard.index for shard in new])
    refuse_absent(runs, plan, stage, markers, new)
    added = {index: _dataset_file(plan, stage, marker, policy_version) for index, marker in markers.items()}
    wanted = _unnumbered(plan, stage, policy_version, {**listed, **added})
    intent = Intent(log, wanted, latest)
    published = intent.published_before()
    if published is None:
        prove_run(runs, plan, stage, markers, new)
        began = time.time()
        published = intent.note()
    return published or _append(log, wanted.adding_to(base) if base else wanted, latest, began)


def _chosen(plan: Plan, shards: frozenset[int] | None) -> frozenset[int]:
    everything = frozenset(range(len(plan.shards)))
    chosen = everything if shards is None else shards
    if shards is not None and (not chosen or chosen - everything):
        raise ValueError(f"run {plan.run_id} has shards 0 to {len(plan.shards) - 1}, got {sorted(chosen)[:5]}")
    return chosen


def _base(log: VersionLog, latest: LogEntry | None, plan: Plan, stage: str, policy_version: int) -> LogEntry | None:
    """Return the run's newest entry, if it is of this very stage."""
    entry = _newest_of(log, latest, plan.run_id)
    wanted = (stage, policy_version, plan.fingerprint)
    return entry if entry and (entry.stage, entry.policy_version, entry.fingerprint) == wanted else None


def _newest_of(log: VersionLog, latest: LogEntry | None, run_id: str) -> LogEntry | None:
    entry, steps = latest, 0
    while entry and entry.run_id != run_id and entry.previous and steps < _MAX_STEPS_BACK:
        entry, steps = log.read(entry.previous), steps + 1
    return entry if entry and entry.run_id == run_id else None


def _unnumbered(plan: Plan, stage: str, policy_version: int, by_shard: Mapping[int, DatasetFile]) -> LogEntry:
    files = tuple(by_shard[index] for index in sorted(by_shard))
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


def _append(log: VersionLog, wanted: LogEntry, latest: LogEntry | None, began: float) -> LogEntry | None:
    """Append after `latest`, or after whatever others append in the meantime.

    Returns None for a part of a run of which another part came in between, for it has to stand for both, and when
    it is too long since this publish `began` (by the wall clock).
    """
    while abs(time.time() - began) < _SECONDS_TO_APPEND:  # not the monotonic clock: a machine may sleep
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
    return None


def _holds(taken: LogEntry, wanted: LogEntry) -> bool:
    """Whether another worker of the same run has just published these files, and more of the run."""
    return taken.run_id == wanted.run_id and set(taken.files) >= set(wanted.files)


def _after(latest: LogEntry | None, wanted: LogEntry) -> LogEntry:
    if latest is None:
        return replace(wanted, number=1)
    previous = latest.previous if latest.run_id == wanted.run_id else latest.number
    return replace(wanted, number=latest.number + 1, parent=latest.number, previous=previous)


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
