"""The next rollouts, looked for, fetched and begun in a thread while the trainer still reads the present ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator

from rollmill.errors import RollmillError
from rollmill.storage.ahead import Ahead
from rollmill.storage.file_source import FileSource
from rollmill.storage.log import LogEntry
from rollmill.storage.minibatches import Cursor, Minibatch, MinibatchReader
from rollmill.storage.newest import RunFinder
from rollmill.storage.reading import Reading

logger = logging.getLogger(__name__)

MINIBATCHES_AHEAD = 2
_SECONDS_BETWEEN_LOOKS = 5.0


class Stream:
    """Minibatches of some runs from a place on, made ahead in a thread; another thread fetches the rest of the files.

    The threads start with the first minibatch that is asked for, or with `begin`.
    """

    def __init__(self, source: FileSource, reader: MinibatchReader, cursor: Cursor) -> None:
        self.reader = reader
        self._source = source
        self._cursor = cursor
        self._minibatches: Ahead[Minibatch] | None = None
        self._fetching: Ahead[None] | None = None

    def begin(self) -> Ahead[Minibatch]:
        if self._minibatches is None:
            self._minibatches = Ahead(self.reader.read(self._cursor), MINIBATCHES_AHEAD)
            self._fetching = Ahead(_fetched(self._source, self.reader), 1)
        return self._minibatches

    def next(self) -> Minibatch:
        return next(self.begin())

    def close(self) -> None:
        for thread in (self._minibatches, self._fetching):
            if thread is not None:
                thread.close()


class Preparation:
    """One look for rollouts other than `present`, in a thread."""

    def __init__(
        self,
        finder: RunFinder,
        policy_version: int | None,
        source: FileSource,
        reading: Reading,
        present: tuple[int, ...],
    ) -> None:
        self._began = time.monotonic()
        self._found: Stream | None = None
        self._thread = Ahead(_prepared(finder, policy_version, source, reading, present), 1)

    def take(self, entries: list[LogEntry]) -> Stream | None:
        """Return the stream of exactly these entries when it is prepared; every other ends here."""
        self._collect()
        found, self._found = self._found, None
        if found is not None and found.reader.numbers == tuple(entry.number for entry in entries):
            return found
        if found is not None:
            found.close()
        self._thread.close()
        return None

    @property
    def found_nothing(self) -> bool:
        """Whether the look is over, brought nothing new, and was so long ago that another may."""
        self._collect()
        return self._thread.is_ready and self._found is None and time.monotonic() - self._began > _SECONDS_BETWEEN_LOOKS

    def close(self) -> None:
        self.take([])

    def _collect(self) -> None:
        if self._found is None and self._thread.is_ready:
            self._found = next(self._thread, None)


def _prepared(
    finder: RunFinder, policy_version: int | None, source: FileSource, reading: Reading, present: tuple[int, ...]
) -> Generator[Stream | None, None, None]:
    try:
        entries = finder.find(policy_version)
        if not entries or tuple(entry.number for entry in entries) == present:
            return
        reader = MinibatchReader(source, entries, reading)
        source.fetch(reader.files)
    except RollmillError as error:
        logger.warning("could not prepare the next rollouts: %s", error)  # the refresh itself will look again
        return
    stream = Stream(source, reader, Cursor())
    stream.begin()
    yield stream


def _fetched(source: FileSource, reader: MinibatchReader) -> Generator[None, None, None]:
    try:
        source.fetch(reader.files)
    except RollmillError as error:
        logger.warning("could not fetch all files ahead: %s", error)  # whoever needs the file will raise
    yield
