"""The store's log: numbered entries, each created once, each after the one that it names as its parent."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from rollmill.errors import CorruptDataError, ObjectMissingError
from rollmill.storage.layout import HEAD_KEY, log_key
from rollmill.storage.objects import Objects


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
    operation_id   the same for everyone who publishes the same files of the same stage of the same run
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


def _parse(text: bytes, number: int, where: str) -> LogEntry:
    try:
        stored: dict[str, Any] = json.loads(text)
        entry = LogEntry(**{**stored, "files": tuple(DatasetFile(**file) for file in stored["files"])})
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{where} is not a log entry: {error!r}") from error
    if entry.number != number or entry.parent != number - 1 or not 0 <= entry.previous < number:
        raise CorruptDataError(
            f"{where} does not fit its place in the log: it says {entry.number} after {entry.parent}"
        )
    return entry
