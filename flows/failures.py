"""When too many rewards fail: a run whose scorer is broken must not become a dataset of what little was scored."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

from rollmill.errors import RunFailedError
from rollmill.flows.gate import Gate
from rollmill.tasks.figures import Figures, total
from rollmill.tasks.rewards.reasons import commonest


class FailedRewards:
    """Counts the answers that could not be scored, from any thread, and closes the gate once they are too many.

    They are as soon as the share of failed answers would be above `max_fraction` even if every answer that is still to
    come, of `total_rows` in all, were scored.
    """

    def __init__(self, what: str, *, max_fraction: float, total_rows: int, gate: Gate, remedy: str) -> None:
        self._what = what
        self._max_fraction = max_fraction
        self._total_rows = total_rows
        self._gate = gate
        self._remedy = remedy
        self._stats: dict[int, Mapping[str, Any]] = {}
        self._lock = threading.Lock()

    def add(self, shard: int, stats: Mapping[str, Any]) -> None:
        """Count a scored shard, once however often it is added."""
        with self._lock:
            self._stats[shard] = stats
        if self._too_many() is not None:
            self._gate.close()

    def check(self) -> None:
        """Raise RunFailedError, with the commonest reasons and what to do, when too many rewards failed."""
        found = self._too_many()
        if found is not None:
            raise RunFailedError(found)

    def may_publish(self, shards: Collection[int]) -> bool:
        """Say whether the share of failed answers among scored shards is one that a run may have."""
        figures = self.figures(shards)
        return figures.unscored <= self._max_fraction * (figures.rows - figures.failed)

    def figures(self, shards: Collection[int]) -> Figures:
        """Return what scored shards add up to."""
        with self._lock:
            return total(self._stats[shard] for shard in shards)

    def _too_many(self) -> str | None:
        with self._lock:
            figures = total(self._stats.values())
        answers = self._total_rows - figures.failed
        if figures.unscored <= self._max_fraction * answers:
            return None
        return (
            f"{self._what}: {figures.unscored} of {answers} answers could not be scored, more than max_failed_fraction "
            f"{self._max_fraction:g} allows, and nothing more was published; most often: "
            f"{'; '.join(commonest(figures.reasons))}. {self._remedy}"
        )
