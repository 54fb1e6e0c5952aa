"""The job of a training set: a rollout job and what its rollouts become."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Literal

from pydantic import ConfigDict, Field

from rollmill.flows.job import RolloutJob
from rollmill.tasks.export.config import ExportConfig
from rollmill.tasks.storage_options import StorageOptions


class ExportJob(ExportConfig):
    """The training set that is made of the rollouts."""

    model_config = ConfigDict(title="Export")

    out: str = Field(
        min_length=1,
        description="Where the set goes: a local folder or s3://bucket/prefix, apart from the store. An earlier set of "
        "this job there is replaced as a whole; anything else there is left, and the job refused.",
    )
    storage_options: StorageOptions = Field(
        default_factory=dict, description="Passed to fsspec for an s3:// address, without any credentials."
    )
    mode: Literal["replace", "append"] = Field(
        default="replace",
        description="replace: the set holds what was chosen of this run alone. append: of every run of this job that "
        "the store holds, chosen anew; the set grows with each run.",
    )

    @property
    def config(self) -> ExportConfig:
        """What the set is made of, without where it goes."""
        return ExportConfig.model_validate({name: getattr(self, name) for name in ExportConfig.model_fields})


class RejectionSamplingJob(RolloutJob):
    """A rollout job whose chosen answers become a training set."""

    model_config = ConfigDict(extra="forbid", title="Rejection sampling job")

    export: ExportJob = Field(
        description="The training set that is made of the rollouts. A job with this section is a rejection-sampling "
        "job; one without stops at the rollouts."
    )
    vary_seed: bool = Field(
        default=True,
        description="Of a job with export: a run that a deployment starts draws by a seed made of sampling.seed and "
        "the time that it was scheduled for, so that a policy that stays the same gives other answers each night. "
        "false: by sampling.seed itself.",
    )

    def scheduled_for(self, time: datetime | None) -> RejectionSamplingJob:
        """Return the job as it runs at a scheduled time (with a time zone): under a run id of its own, unless it has
        one. Without a time it is this job."""
        if time is None or self.run_id is not None:
            return self
        stamp = f"{time.astimezone(UTC):%Y%m%dT%H%M%SZ}"
        seed = _seed_at(self.sampling.seed, stamp) if self.vary_seed else self.sampling.seed
        sampling = self.sampling.model_copy(update={"seed": seed})
        return self.model_copy(update={"run_id": f"{self.resolved_run_id}-{stamp}", "sampling": sampling})

    def owns(self, run_id: str) -> bool:
        """Say whether a run is one of this job: this very run, or one that the job named at any version and time."""
        named = rf"{re.escape(self.name)}-v\d+(-\d{{8}}T\d{{6}}Z)?"
        return run_id == self.resolved_run_id or re.fullmatch(named, run_id) is not None


def _seed_at(seed: int, stamp: str) -> int:
    digest = hashlib.blake2b(f"{seed}\n{stamp}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "little")
