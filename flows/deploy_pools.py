"""Work pools, their queues, and global concurrency limits, as pieces to deploy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import (
    GlobalConcurrencyLimitCreate,
    GlobalConcurrencyLimitUpdate,
    WorkPoolCreate,
    WorkPoolUpdate,
)
from prefect.workers.process import ProcessWorker

from rollmill.errors import JobError
from rollmill.flows.deploy_settings import ConcurrencyLimitSettings, QueueSettings, WorkPoolSettings
from rollmill.flows.deploying import Piece, Values
from rollmill.flows.job_file import read_yaml


@dataclass(frozen=True)
class WorkPoolPiece(Piece):
    """A work pool; one that is paused stays paused."""

    client: SyncPrefectClient
    settings: WorkPoolSettings
    kind: ClassVar[str] = "work pool"

    @property
    def name(self) -> str:
        return self.settings.name

    def wanted(self) -> Values:
        settings = self.settings
        wanted: dict[str, Any] = {
            "type": settings.type,
            "description": settings.description,
            "concurrency_limit": settings.concurrency_limit,
        }
        if settings.base_job_template is not None:
            wanted["base_job_template"] = read_yaml(settings.base_job_template, what="base job template")
        return wanted

    def current(self) -> Values:
        pool = self.client.read_work_pool(self.name)
        if pool.type != self.settings.type:
            raise JobError(
                f"work pool {self.name} is there with the type {pool.type}, which cannot become {self.settings.type}: "
                "give it another name, or delete the old one"
            )
        return {
            "type": pool.type,
            "description": pool.description or "",
            "concurrency_limit": pool.concurrency_limit,
            "base_job_template": pool.base_job_template,
        }

    def make(self, wanted: Values) -> None:
        """Make it; a process pool begins with Prefect's template, others get their worker's when one first starts."""
        if self.settings.type == ProcessWorker.type:
            wanted = {"base_job_template": ProcessWorker.get_default_base_job_template(), **wanted}
        self.client.create_work_pool(WorkPoolCreate(name=self.name, **wanted))

    def change(self, wanted: Values, fields: Sequence[str]) -> None:
        self.client.update_work_pool(self.name, WorkPoolUpdate(**{field: wanted[field] for field in fields}))


@dataclass(frozen=True)
class QueuePiece(Piece):
    """A queue of a work pool, at a place among its queues, counted from 1; one that is paused stays paused."""

    client: SyncPrefectClient
    pool: str
    settings: QueueSettings
    place: int
    kind: ClassVar[str] = "work queue"

    @property
    def name(self) -> str:
        return f"{self.pool}/{self.settings.name}"

    def wanted(self) -> Values:
        return {"priority": self.place, "concurrency_limit": self.settings.concurrency_limit}

    def current(self) -> Values:
        queue = self.client.read_work_queue_by_name(self.settings.name, work_pool_name=self.pool)
        return {"priority": queue.priority, "concurrency_limit": queue.concurrency_limit}

    def make(self, wanted: Values) -> None:
        self.client.create_work_queue(self.settings.name, work_pool_name=self.pool, **wanted)

    def change(self, wanted: Values, fields: Sequence[str]) -> None:
        queue = self.client.read_work_queue_by_name(self.settings.name, work_pool_name=self.pool)
        self.client.update_work_queue(queue.id, **{field: wanted[field] for field in fields})


@dataclass(frozen=True)
class ConcurrencyLimitPiece(Piece):
    """A global concurrency limit; slots in use stay in use."""

    client: SyncPrefectClient
    settings: ConcurrencyLimitSettings
    kind: ClassVar[str] = "concurrency limit"

    @property
    def name(self) -> str:
        return self.settings.name

    def wanted(self) -> Values:
        return {"limit": self.settings.limit}

    def current(self) -> Values:
        return {"limit": self.client.read_global_concurrency_limit_by_name(self.name).limit}

    def make(self, wanted: Values) -> None:
        self.client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=self.name, **wanted))

    def change(self, wanted: Values, fields: Sequence[str]) -> None:  # noqa: ARG002  (it has one field)
        self.client.update_global_concurrency_limit(self.name, GlobalConcurrencyLimitUpdate(**wanted))
