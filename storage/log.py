"""The store's log: numbered entries, each created once, each after the one that it names as its parent.

An entry that only adds files to earlier entries of its run lists those alone, and names the earlier ones. Readers of
entries do not see this: what they get has all the files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rollmill.errors import CorruptDataError, JobError, ObjectMissingError
from rollmill.storage.concurrency import at_once
from rollmill.storage.layout import HEAD_KEY, log_key
from rollmill.storage.objects import Objects
from rollmill.storage.plan import canonical_json, check_run_id

_MAX_ENTRIES_JOINED = 32
_SAID_ONCE = ("run_id", "stage", "policy_version")  # of the entry, so of each of its files


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
    complete       whether they are all that the run's plan asks for; a run may be published as it goes
    after          the earlier entries of this run, oldest first, that already list some of the files
    added          the other files, which this entry itself lists; empty when `after` is, for then it lists them all
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
    complete: bool = True
    after: tuple[int, ...] = ()
    added: tuple[DatasetFile, ...] = ()

    def to_json(self) -> str:
        stored = asdict(self)
        files = stored.pop("added") if self.after else stored.pop("files")
        stored["files"] = [{name: file[name] for name in file if name not in _SAID_ONCE} for file in files]
        stored.pop("added", None)
        return json.dumps({"sha256": _checksum(stored), **stored}, ensure_ascii=False)

    def adding_to(self, base: LogEntry) -> LogEntry:
        """Return this entry as an addition to `base`, or as it is where it does not hold all that `base` does."""
        named = set(base.files)
        same_kind = (base.run_id, base.stage, base.fingerprint) == (self.run_id, self.stage, self.fingerprint)
        if not same_kind or not named <= set(self.files) or len(base.after) + 1 > _MAX_ENTRIES_JOINED:
            return self
        added = tuple(file for file in self.files if file not in named)
        return replace(self, after=(*base.after, base.number), added=added)


class VersionLog:
    """Reads and appends log entries; finds the newest without ever listing."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def read(self, number: int) -> LogEntry | None:
        """Return entry `number`, or None when the log does not reach it. Raises CorruptDataError when it is damaged."""
        stored = self._stored(number)
        return None if stored is None else self._joined(stored, {})

    def read_all(self) -> list[LogEntry]:
        """Return every entry, oldest first, each object read once. Raises CorruptDataError for gaps and damage."""
        newest = self._newest(None)
        numbers = range(1, newest.number + 1 if newest else 1)
        stored = dict(zip(numbers, at_once(self._stored, numbers), strict=True))
        return [self._joined(self._found(entry, number), stored) for number, entry in stored.items()]

    def latest(self, at_least: int | None = None) -> LogEntry | None:
        """Return the newest entry, or None when there is none.

        The walk begins at `at_least`, a number known to exist, or at the HEAD hint; a hint that leads nowhere means
        a walk from the beginning.
        """
        newest = self._newest(at_least)
        return None if newest is None else self._joined(newest, {})

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

    def _newest(self, at_least: int | None) -> LogEntry | None:
        newest = self._stored(self.hint() if at_least is None else at_least)
        while True:
            following = self._stored(1 if newest is None else newest.number + 1)
            if following is None:
                return newest
            newest = following

    def _stored(self, number: int) -> LogEntry | None:
        """Return the entry as it is stored, whose files are those that it lists itself."""
        if number < 1:
            return None
        try:
            text = self.objects.get(log_key(number))
        except ObjectMissingError:
            return None
        return _parse(text, number, self.objects.where(log_key(number)))

    def _joined(self, entry: LogEntry, known: Mapping[int, LogEntry | None]) -> LogEntry:
        """Return the entry with the files of the earlier ones that it adds to."""
        where = self.objects.where(log_key(entry.number))
        if entry.after:
            earlier = at_once(lambda number: known.get(number) or self._stored(number), entry.after)
            bases = [self._found(base, number) for base, number in zip(earlier, entry.after, strict=True)]
            files = [file for base in (*bases, entry) for file in base.files]
            ordered = tuple(sorted(files, key=lambda file: file.shard))
            entry = replace(entry, files=ordered, added=entry.files)
        if operation_id_of(entry.run_id, entry.stage, entry.policy_version, entry.files) != entry.operation_id:
            raise CorruptDataError(f"{where} does not list the files that its operation id stands for")
        return entry

    def _found(self, entry: LogEntry | None, number: int) -> LogEntry:
        if entry is None:
            raise CorruptDataError(f"{self.objects.where(log_key(number))} is missing from the log")
        return entry


def operation_id_of(run_id: str, stage: str, policy_version: int, files: Iterable[DatasetFile]) -> str:
    """Return the hash that everyone who publishes these files gets."""
    named = [[file.file, file.sha256] for file in files]
    return hashlib.sha256(canonical_json([run_id, stage, policy_version, named]).encode()).hexdigest()[:32]


def _checksum(stored: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(stored).encode()).hexdigest()


def _parse(text: bytes, number: int, where: str) -> LogEntry:
    try:
        stored: dict[str, Any] = json.loads(text)
        checksum = stored.pop("sha256")
        intact = checksum == _checksum(stored)
        shared = {name: stored[name] for name in _SAID_ONCE}
        files = tuple(DatasetFile(**file, **shared) for file in stored["files"])
        entry = LogEntry(**{**stored, "files": files, "after": tuple(stored["after"])})
        check_run_id(entry.run_id)
        fits = entry.number == number == entry.parent + 1 and 0 <= entry.previous < number and entry.group_size >= 1
    except (ValueError, KeyError, TypeError, AttributeError, JobError) as error:
        raise CorruptDataError(f"{where} is not a log entry: {error!r}") from error
    if not intact or not fits:
        raise CorruptDataError(f"{where} was changed after it was written, or is not entry {number}")
    return entry
