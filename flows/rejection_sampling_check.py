"""What is refused of a rejection-sampling job before any weights load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollmill.errors import JobError
from rollmill.flows.api_keys import load_secret
from rollmill.flows.preflight import CheckedJob, check_job
from rollmill.flows.rejection_sampling_job import RejectionSamplingJob
from rollmill.storage.objects import Objects, open_objects
from rollmill.storage.store import RolloutStore
from rollmill.tasks.export.exporting import store_name
from rollmill.tasks.export.manifest import Manifest
from rollmill.tasks.export.place import existing, holds_other_card, holds_store
from rollmill.tasks.rewards.service import LoadSecret


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRejectionSampling:
    """A job whose rollouts can be made and whose training set has a place, and these parts."""

    job: RejectionSamplingJob
    rollouts: CheckedJob
    store: RolloutStore
    place: Objects


def check_rejection_sampling(
    job: RejectionSamplingJob, *, writes: bool = True, secrets: LoadSecret = load_secret
) -> CheckedRejectionSampling:
    """Check the rollouts of a job as `check_job` does, and that its training set may be put where it shall go.

    Without `writes` neither the store nor that place is written to. Raises an InputError of one line for the first
    thing that is wrong, CorruptDataError for a manifest there that cannot be read.
    """
    place = check_place(job)
    rollouts = check_job(job, writes=writes, secrets=secrets)
    if writes:
        place.check_access()
    store = RolloutStore(job.store, job.storage_options)
    return CheckedRejectionSampling(job=job, rollouts=rollouts, store=store, place=place)


def check_place(job: RejectionSamplingJob) -> Objects:
    """Return the place of the training set. Raises JobError when it is not apart from the store, or holds anything but
    an earlier set of this job."""
    store = open_objects(job.store, job.storage_options)
    place = open_objects(job.export.out, job.export.storage_options)
    _refuse_overlap(store, place)
    place.impatient().check_reachable()
    there = existing(place)
    if holds_store(place):
        raise JobError(f"export.out: {place.url} is a rollout store; give another export.out")
    if there is None and holds_other_card(place):
        raise JobError(
            f"export.out: {place.url} holds a README.md of something else; remove it, or give another export.out"
        )
    if there is not None and not _is_of(job, there, store_name(store.url)):
        runs = ", ".join(source.run_id for source in there.sources[:3])
        raise JobError(
            f"export.out: {place.url} holds a training set of another job (of run {runs} in store {there.store}); "
            "remove it, or give another export.out"
        )
    return place


def _is_of(job: RejectionSamplingJob, there: Manifest, store: str) -> bool:
    return there.store == store and all(job.owns(source.run_id) for source in there.sources)


def _refuse_overlap(store: Objects, place: Objects) -> None:
    outer, inner = sorted([f"{_resolved(store.url)}/", f"{_resolved(place.url)}/"], key=len)
    if inner.startswith(outer):
        raise JobError(
            f"export.out: {place.url} and the store {store.url} may not lie one in the other; give another export.out"
        )


def _resolved(url: str) -> str:
    return url if "://" in url else str(Path(url).resolve()).rstrip("/")
