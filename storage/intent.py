"""What makes publishing the same twice one version, whatever happened in between."""

from __future__ import annotations

import json
from dataclasses import dataclass

from rollmill.errors import CorruptDataError, ObjectExistsError, ObjectMissingError
from rollmill.storage.concurrency import at_once
from rollmill.storage.layout import intent_key
from rollmill.storage.log import LogEntry, VersionLog
from rollmill.storage.retirement import refuse_retired


@dataclass(frozen=True, slots=True)
class Intent:
    """The note of who first publishes exactly these files: how long the log was before.

    So whoever publishes the same again, after a crash or a lost reply, searches only what came after.
    """

    log: VersionLog
    wanted: LogEntry
    latest: LogEntry | None

    def published_before(self) -> LogEntry | None:
        """Return the entry of this very operation, if there is one. Raises CorruptDataError for a damaged note."""
        try:
            after = self._length_before()
        except ObjectMissingError:
            return None
        length = 0 if self.latest is None else self.latest.number
        entries = at_once(self.log.read, range(after + 1, length + 1))
        return next((entry for entry in entries if entry and entry.operation_id == self.wanted.operation_id), None)

    def note(self) -> LogEntry | None:
        """Note that the operation begins; return its entry if another worker noted it, and ended it, before.

        A note that led to no entry is written again, for its age tells `vacuum` that somebody is at it. Raises JobError
        when the run was retired before the note.
        """
        length = 0 if self.latest is None else self.latest.number
        try:
            self.log.objects.create(self._key, json.dumps({"after": length, "at": self.wanted.created_at}).encode())
        except ObjectExistsError:
            published = self.published_before()
            if published is not None:
                return published
            self.log.objects.put(self._key, self.log.objects.get(self._key))
        refuse_retired(self.log.objects, self.wanted.run_id)
        return None

    @property
    def _key(self) -> str:
        return intent_key(self.wanted.run_id, self.wanted.operation_id)

    def _length_before(self) -> int:
        text = self.log.objects.get(self._key)
        try:
            return int(json.loads(text)["after"])
        except (ValueError, KeyError, TypeError) as error:
            where = self.log.objects.where(self._key)
            raise CorruptDataError(f"{where} does not say where its publish began; delete it") from error
