"""One decision for all ranks: rank 0 makes it, the others are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from rollmill.errors import RollmillError

Decision = TypeVar("Decision")


class Agreement:
    """The processes of a `torch.distributed` group, or this process alone when `group` is None."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group

    @classmethod
    def among(cls, world_size: int, group: dist.ProcessGroup | None) -> Agreement:
        """Return the agreement of `group`; without one, that of all processes when there are several ranks and
        torch.distributed is initialised, and otherwise of this process alone."""
        together = world_size > 1 and dist.is_available() and dist.is_initialized()
        return cls(dist.group.WORLD if group is None and together else group)

    @property
    def is_leader(self) -> bool:
        return self._group is None or dist.get_rank(self._group) == 0

    def on(self, decide: Callable[[], Decision]) -> Decision:
        """Return what `decide` returns on rank 0, or raise the error that it raises there, on every rank.

        All ranks of the group call this at the same time; only rank 0 calls `decide`, and what that returns is pickled.
        """
        if self._group is None:
            return decide()
        told: list[Any] = [_outcome(decide) if self.is_leader else None]
        dist.broadcast_object_list(told, src=dist.get_global_rank(self._group, 0), group=self._group)
        decision, error = told[0]
        if error is not None:
            raise error
        value: Decision = decision
        return value


def _outcome(decide: Callable[[], Decision]) -> tuple[Decision | None, RollmillError | None]:
    try:
        return decide(), None
    except RollmillError as error:
        return None, error
