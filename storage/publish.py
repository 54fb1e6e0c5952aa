"""Publishing a run: the ledger first, then one new entry in the log.

An entry lists the files of its own run only, and names the newest entry of another run as `previous`. So a version
holds the newest run and, through that chain, every run before it: a reader of the newest run needs one small object,
a reader of a window of k runs needs k, nothing that is in the log already is written again, and the log grows with
what is added. A run that is published again, with more shards or rescored under another stage, gets a new entry that
stands for the whole run, and readers of a window skip its older ones. Earlier versions stay as they were.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime

from rollmill.errors import CorruptDataError, ObjectExistsError
from rollmill.storage.concurrency import at_once
from rollmill.storage.layout import claim_format, intent_key
from rollmill.storage.ledger import prove_run
from rollmill.storage.log import DatasetFile, LogEntry, VersionLog, operation_id_of
from rollmill.storage.objects import Objects
from rollmill.storage.plan import Plan
from rollmill.storage.runs import RunStore, ShardMarker
from rollmill.storage.version import DatasetVersion

logger = logging.getLogger(__name__)


def publish_run(objects: Objects, plan: Plan, stage: str, *, policy_version: int) -> DatasetVersion:
    """Make the committed shards of a run's stage the newest dataset version, and return it.

    Publishing the same files again returns the version that they already have. Of two runs that are published at
    once both succeed, one after the other. Raises CorruptDataError when the ledger does not balance.
    """
    claim_format(objects)
    runs = RunStore(objects, plan.run_id)
    markers = runs.finished(stage, [shard.index for shard in plan.shards])
    prove_run(runs, plan, stage, markers)
    files = tuple(_dataset_file(plan, stage, markers[shard.index], policy_version) for shard in plan.shards)
    wanted = LogEntry(
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
    )
    log = VersionLog(objects)
    latest = log.latest()
    entry = _published_before(log, wanted, latest) or _append(log, wanted, latest)
    return DatasetVersion(objects, entry)


def _append(log: VersionLog, wanted: LogEntry, latest: LogEntry | None) -> LogEntry:
    """Append after `latest`, or after whatever others append in the meantime."""
    while True:
        entry = _after(latest, wanted)
        try:
            log.append(entry)
        except ObjectExistsError:
            taken = log.read(entry.number)
            if taken is None:
                continue
            if taken.operation_id == wanted.operation_id:
                return taken
            logger.warning(
                "version %d was published by run %s in the meantime; rebased run %s onto it as version %d",
                taken.number, taken.run_id, wanted.run_id, taken.number + 1,
            )  # fmt: skip
            latest = taken
        else:
            return entry


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
