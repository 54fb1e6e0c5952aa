"""When rollouts go stale: every so many optimizer steps, all at once."""

from __future__ import annotations

from typing import Any

from rollmill.errors import InputError


class RefreshInterval:
    """Counts optimizer steps and says when rollouts are due to be renewed: at first, then once in every
    `rollout_interval` steps.

    What was renewed in one interval stays good to its end, however often it is asked for. Raises InputError for an
    interval below 1.
    """

    def __init__(self, rollout_interval: int) -> None:
        if rollout_interval < 1:
            raise InputError(f"rollout_interval must be at least 1, got {rollout_interval}")
        self.rollout_interval = rollout_interval
        self.steps = 0
        self._renewed_at: int | None = None

    def step(self) -> None:
        """Count one optimizer step."""
        self.steps += 1

    @property
    def is_due(self) -> bool:
        """Whether the rollouts belong to an earlier interval than the steps do, or there are none."""
        return self._renewed_at is None or self._interval_of(self._renewed_at) != self._interval_of(self.steps)

    @property
    def is_halfway(self) -> bool:
        """Whether at least half of the interval has passed, so that what comes next may be prepared."""
        return 2 * (self.steps % self.rollout_interval) >= self.rollout_interval

    def renew(self) -> None:
        """Say that the rollouts have just been renewed, or been found to be still the newest."""
        self._renewed_at = self.steps

    def expire(self) -> None:
        """Make the rollouts due at once."""
        self._renewed_at = None

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "renewed_at": self._renewed_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken; the interval itself may have been changed since."""
        self.steps, self._renewed_at = state["steps"], state["renewed_at"]

    def _interval_of(self, steps: int) -> int:
        return steps // self.rollout_interval
