"""Whether a run goes on: what is worth another try, and when nothing more should begin."""

from __future__ import annotations

import threading
from typing import Any

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun

from rollmill.errors import CorruptDataError, GenerationError, RunFailedError, StorageError, StoreAccessError
from rollmill.flows.terminal import say

_WORTH_ANOTHER_TRY = (GenerationError, StorageError, StoreAccessError, OSError)
_THE_SAME_EACH_TIME = (CorruptDataError,)


class Gate:
    """Open until it is closed for good: when the run is interrupted, or shard after shard fails."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def close(self) -> None:
        """Let no more work begin, and no failed work be tried again."""
        self._closed.set()

    @property
    def is_open(self) -> bool:
        """Whether anything may begin."""
        return not self._closed.is_set()

    def check(self) -> None:
        """Raise RunFailedError when the gate is closed."""
        if not self.is_open:
            raise RunFailedError("not begun, for the run is ending")

    def may_retry(self, task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:  # noqa: ARG002  (Prefect passes all three)
        """Say whether failed work is tried again, when Prefect asks, and tell whoever watches the terminal."""
        error = state.result(raise_on_failure=False)
        if self._closed.is_set() or isinstance(error, _THE_SAME_EACH_TIME):
            return False
        worth_it = isinstance(error, _WORTH_ANOTHER_TRY)
        if worth_it:
            say(f"{task_run.name}: {error}; trying again")
        return worth_it
