"""The store's log: numbered entries, each created once, each after the one that it names as its parent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rollmill.errors import CorruptDataError, JobError, ObjectMissingError
from rollmill.storage.layout import HEAD_KEY, log_key
from rollmill.storage.objects import Objects
from rollmill.storage.plan import canonical_json, check_run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFile:
    """One Parquet file of a dataset version: shard `shard` of a stage of a run."""

    file: str
    rows: int
    bytes: int
    sha256: str
    run_id: str
    stage: str
    shard: int
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """What one publish added.

    number         counts from 1
    parent         the number before it, 0 for the first
    previous       the newest entry of another run, 0 when there is none: the way to a version's earlier runs
    operation_id   a hash of run, stage, policy version and files: the same for all who publish the same thing
    created_at     UTC, ISO 8601
    files          all files of this run, in shard order
    """

    number: int
    parent: int
    previous: int
    operation_id: str
    created_at: str
    run_id: str
    stage: str
    policy_version: int
    group_size: int
    fingerprint: str
    files: tuple[DatasetFile, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


class VersionLog:
    """Reads and appends log entries; finds the newest without ever listing."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def read(self, number: int) -> LogEntry | None:
        """Return entry `number`, or None when the log does not reach it. Raises CorruptDataError when it is damaged."""
        if number < 1:
            return None
        try:
            text = self.objects.get(log_key(number))
        except ObjectMissingError:
            return None
        return _parse(text, number, self.objects.where(log_key(number)))

    def latest(self, at_least: int | None = None) -> LogEntry | None:
        """Return the newest entry, or None when there is none.

        The walk begins at `at_least`, a number known to exist, or at the HEAD hint; a hint that leads nowhere means
        a walk from the beginning.
        """
        newest = self.read(self.hint() if at_least is None else at_least)
        while True:
            following = self.read(1 if newest is None else newest.number + 1)
            if following is None:
                return newest
            newest = following

    def append(self, entry: LogEntry) -> None:
        """Create the entry, then move the hint. Raises ObjectExistsError when the number is taken."""
        self.objects.create(log_key(entry.number), entry.to_json().encode())
        self.objects.put(HEAD_KEY, str(entry.number).encode())

    def hint(self) -> int:
        """Return the number that HEAD names, which may be too low; 0 when it names none."""
        try:
            text = self.objects.get(HEAD_KEY)
        except ObjectMissingError:
            return 0
        return int(text) if text.isdigit() else 0


def operation_id_of(run_id: str, stage: str, policy_version: int, files: Iterable[DatasetFile]) -> str:
    """Return the hash that everyone who publishes these files gets."""
    named = [[file.file, file.sha256] for file in files]
    return hashlib.sha256(canonical_json([run_id, stage, policy_version, named]).encode()).hexdigest()[:32]


def _parse(text: bytes, number: int, where: str) -> LogEntry:
    try:
        stored: dict[str, Any] = json.loads(text)
        entry = LogEntry(**{**stored, "files": tuple(DatasetFile(**file) for file in stored["files"])})
        check_run_id(entry.run_id)
        fits = entry.number == number == entry.parent + 1 and 0 <= entry.previous < number and entry.group_size >= 1
        operation_id = operation_id_of(entry.run_id, entry.stage, entry.policy_version, entry.files)
    except (ValueError, KeyError, TypeError, JobError) as error:
        raise CorruptDataError(f"{where} is not a log entry: {error!r}") from error
    if not fits or operation_id != entry.operation_id:
        raise CorruptDataError(f"{where} was changed after it was written, or is not entry {number}")
    return entry
