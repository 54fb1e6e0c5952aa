"""Which runs a trainer is to read: the newest, as far as they are not too old for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rollmill.errors import InputError, ObjectMissingError, StaleRolloutsError
from rollmill.storage.log import LogEntry
from rollmill.storage.store import RolloutStore
from rollmill.storage.version import DatasetVersion

logger = logging.getLogger(__name__)

ON_STALE = ("wait", "reuse", "raise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """How many runs are read, and how old they may be.

    window          the newest runs that are read together
    max_staleness   greatest age in policy versions, the trainer's less the rollouts'; None for any
    on_stale        what to do while all runs are older than that: wait for another, reuse them, or raise
    """

    window: int = 1
    max_staleness: int | None = None
    on_stale: str = "wait"

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InputError(f"window must be at least 1, got {self.window}")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise InputError(f"max_staleness must be at least 0, got {self.max_staleness}")
        if self.on_stale not in ON_STALE:
            raise InputError(f"on_stale must be wait, reuse or raise, got {self.on_stale!r}")

    def is_stale(self, entry: LogEntry, policy_version: int | None) -> bool:
        """Whether the run is too old for a trainer that is at `policy_version`.

        Raises InputError when the age is limited and the trainer has not said where it is.
        """
        if self.max_staleness is None:
            return False
        if policy_version is None:
            raise InputError(
                "max_staleness needs to know the trainer's policy version: set the runner's policy_version, or call "
                "step(policy_version=…)"
            )
        return policy_version - entry.policy_version > self.max_staleness


@dataclass(slots=True)
class RunFinder:
    """Finds the runs to read; remembers what it has found, so a look that finds nothing new is one request."""

    store: RolloutStore
    freshness: Freshness
    runs: list[LogEntry] = field(default_factory=list)  # of the window, newest first

    def copy(self) -> RunFinder:
        """Return a finder that goes on from here, for another thread."""
        return replace(self, runs=list(self.runs))

    def find(self, policy_version: int | None) -> list[LogEntry]:
        """Look for newer runs, and return those to read, newest first, without those that are too old.

        When all are: all of them for `reuse`, none for `wait`, and for `raise` StaleRolloutsError says how old they
        are. Raises ObjectMissingError when nothing is published, unless the trainer waits.
        """
        try:
            self._look()
        except ObjectMissingError:
            if self.runs or not self._may_wait:
                raise
            return []
        young = [entry for entry in self.runs if not self.freshness.is_stale(entry, policy_version)]
        if young or self._may_wait:
            return young
        if self.freshness.on_stale == "raise":
            raise StaleRolloutsError(self.too_old(policy_version))
        logger.warning("%s; they are read again", self.too_old(policy_version))
        return self.runs

    def too_old(self, policy_version: int | None) -> str:
        """Return the line that says why there is nothing to read."""
        if not self.runs:
            return f"store {self.store.url} has no published version yet"
        newest = self.runs[0]
        return (
            f"the newest rollouts of {self.store.url}, version {newest.number}, are of policy version "
            f"{newest.policy_version}; the trainer is at {policy_version} and accepts an age of "
            f"{self.freshness.max_staleness}"
        )

    @property
    def _may_wait(self) -> bool:
        return self.freshness.max_staleness is not None and self.freshness.on_stale == "wait"

    def _look(self) -> None:
        newest = self._newest()
        if not self.runs or newest is not self.runs[0]:
            self.runs = DatasetVersion(self.store.objects, newest).runs(self.freshness.window)

    def _newest(self) -> LogEntry:
        if not self.runs:
            return self.store.latest().entry
        following = self.store.log.read(self.runs[0].number + 1)
        if following is None:
            return self.runs[0]
        return self.store.log.latest(at_least=following.number) or following


def entries_of(store: RolloutStore, numbers: Sequence[int]) -> list[LogEntry]:
    """Return log entries by number. Raises ObjectMissingError for one that is not there."""
    entries = [(number, store.log.read(number)) for number in numbers]
    absent = [str(number) for number, entry in entries if entry is None]
    if absent:
        raise ObjectMissingError(f"store {store.url} has no version {', '.join(absent)}, which was being read")
    return [entry for _, entry in entries if entry is not None]
