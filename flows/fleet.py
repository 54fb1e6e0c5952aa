"""A run whose shards several flow runs make: dealing them out, and waiting until the store has them.

The store says what is finished, not the flow runs: a member whose machine is gone never ends, and one that was given
up may still finish a shard. Shards commit once, so members that are late, lost or doubled do no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.deployments import run_deployment
from prefect.exceptions import PrefectException
from prefect.states import Cancelling

from rollmill.errors import CorruptDataError, JobError, StorageError, StoreAccessError
from rollmill.flows.failures import FailedRewards
from rollmill.flows.gate import Gate
from rollmill.flows.job import RolloutJob, Share
from rollmill.flows.preflight import CheckedJob
from rollmill.flows.progress import Progress
from rollmill.flows.publishing import publishing_as_it_goes
from rollmill.flows.shard_work import RemainingWork, failed_rewards
from rollmill.storage.plan import Plan
from rollmill.storage.runs import ShardMarker
from rollmill.tasks.scoring import score_stage

_MAX_ROUNDS = 3
_SECONDS_BETWEEN_LOOKS = 2.0


def name_of(job: RolloutJob, share: Share | None) -> str:
    """Return what a flow run of a job, or of a share of it, is called."""
    whole = f"rollout-{job.resolved_run_id}"
    return whole if share is None else f"{whole}-share-{share.index}-of-{share.of}"


def run_fleet(checked: CheckedJob, plan: Plan, work: RemainingWork, progress: Progress) -> frozenset[int]:
    """Let members make the missing shards, and return those that they finished.

    What members that failed or were lost leave is dealt out again, a few times at most, as long as it helps. Raises
    JobError when no member can be started, and RunFailedError when too many rewards failed.
    """
    gate = Gate()
    failed = failed_rewards(checked, plan, work, gate)
    already = [shard.index for shard in work.finished]
    with publishing_as_it_goes(checked, plan, already, failed, gate) as publish:
        watch = _Watch(checked, work, progress, failed, publish)
        for number in range(_MAX_ROUNDS):
            missing_before = len(watch.missing)
            if missing_before:
                _round(checked.job, number, watch)
            if not watch.missing or len(watch.missing) == missing_before:
                break
    failed.check()
    return frozenset(watch.found)


class _Watch:
    """Looks into the store for shards that members have finished, and passes on what it finds."""

    def __init__(
        self,
        checked: CheckedJob,
        work: RemainingWork,
        progress: Progress,
        failed: FailedRewards,
        publish: Callable[[Iterable[int]], None],
    ) -> None:
        self._checked, self._work, self._progress = checked, work, progress
        self._failed, self._publish = failed, publish
        self.missing = {shard.index for batch in work.batches for shard in batch}
        self.found: set[int] = set()

    def look(self) -> bool:
        """Take in what is finished since the last look, and say whether that is anything. Raises RunFailedError."""
        new = [marker for marker in self._finished() if self._is_of_this_start(marker)]
        for marker in new:
            self._take(marker)
        self._failed.check()
        if new:
            self._publish(marker.index for marker in new)
            get_run_logger().info("%d shards of the fleet are finished, %d missing", len(self.found), len(self.missing))
        return bool(new)

    def _finished(self) -> list[ShardMarker]:
        """Ask the store; one that does not answer is asked again at the next look."""
        try:
            markers = self._checked.run.finished(score_stage(self._checked.scorer), sorted(self.missing))
        except CorruptDataError:
            raise
        except (StorageError, StoreAccessError, OSError) as error:
            get_run_logger().warning("the store does not say what the fleet has finished: %s", error)
            return []
        return list(markers.values())

    def _is_of_this_start(self, marker: ShardMarker) -> bool:
        return marker.index not in self._work.again or marker.generation > self._work.again[marker.index]

    def _take(self, marker: ShardMarker) -> None:
        self.missing.remove(marker.index)
        self.found.add(marker.index)
        self._failed.add(marker.index, marker.stats)
        if marker.index in self._work.to_generate:
            self._progress.add(marker.rows, marker.stats["response_tokens"])
            self._progress.answered(marker.index)
        self._progress.scored(marker.index, marker.rows)


def _round(job: RolloutJob, number: int, watch: _Watch) -> None:
    """Start members for what is missing, and wait for it, for their ends, or until nothing has come for too long."""
    members: list[FlowRun] = []
    try:
        for share in shares(sorted(watch.missing), job.fleet.size):
            members.append(_start(job, share, number))
        _wait(job, members, watch)
    except BaseException:
        _cancel(members, "the run that this is a share of is ending")
        raise


def shares(shards: Sequence[int], size: int) -> list[Share]:
    """Deal shards out, so that neighbours, which are often alike, go to different members."""
    size = min(size, len(shards))
    return [Share(index=place + 1, of=size, shards=list(shards[place::size])) for place in range(size)]


def member_parameters(job: RolloutJob, share: Share) -> dict[str, Any]:
    """Return what a member is started with: the job of the whole run, without what its parent does with it."""
    values = {field: getattr(job, field) for field in RolloutJob.model_fields}
    whole = RolloutJob.model_validate({**values, "run_id": job.resolved_run_id})
    parents = {"fleet", "publish", "report"}
    return {"job": whole.model_dump(mode="json", exclude=parents), "share": share.model_dump(mode="json")}


def _start(job: RolloutJob, share: Share, number: int) -> FlowRun:
    """Start a member. A request that is sent again, because its answer was lost, starts no second one."""
    assert job.fleet.deployment is not None
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    attempt = f"{context.flow_run.id}.{context.flow_run.run_count}"
    try:
        started = run_deployment(
            job.fleet.deployment,
            parameters=member_parameters(job, share),
            timeout=0,
            flow_run_name=name_of(job, share),
            tags=[f"fleet:{job.resolved_run_id}"],
            idempotency_key=f"{job.resolved_run_id}/{attempt}/{number}/{share.index}",
        )
    except (httpx.HTTPError, PrefectException) as error:
        raise JobError(
            f"fleet.deployment: {job.fleet.deployment} cannot be started: {' '.join(str(error).split())}"
        ) from error
    assert isinstance(started, FlowRun)
    return started


def _wait(job: RolloutJob, members: Sequence[FlowRun], watch: _Watch) -> None:
    since, told = time.monotonic(), set[UUID]()
    while True:
        ended = _ended(members)  # before the look, which then sees all that they have committed
        if watch.look():
            since = time.monotonic()
        _tell(ended, told)
        if not watch.missing or len(ended) == len(members):
            return
        if time.monotonic() - since > job.fleet.seconds_without_a_shard:
            given_up = [member for member in members if member.id not in {each.id for each in ended}]
            names = ", ".join(member.name for member in given_up)
            get_run_logger().warning(
                "nothing was finished for %g s; given up: %s", job.fleet.seconds_without_a_shard, names
            )
            _cancel(given_up, "no shard was finished for too long")
            return
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _ended(members: Sequence[FlowRun]) -> list[FlowRun]:
    """Return the members that have ended, as far as the server says; while it does not answer, none have."""
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[member.id for member in members]))
    try:
        with get_client(sync_client=True) as client:
            found = client.read_flow_runs(flow_run_filter=wanted)
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("Prefect's server does not say how the fleet is: %s", error)
        return []
    return [run for run in found if run.state is not None and run.state.is_final()]


def _tell(ended: Collection[FlowRun], told: set[UUID]) -> None:
    for run in ended:
        if run.id not in told and run.state is not None and not run.state.is_completed():
            get_run_logger().warning("%s ended as %s: %s", run.name, run.state.name, run.state.message)
        told.add(run.id)


def _cancel(members: Iterable[FlowRun], why: str) -> None:
    """Ask members to end; one that cannot be asked makes its shards, which does no harm."""
    for member in members:
        try:
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(member.id, Cancelling(message=why))
        except (httpx.HTTPError, PrefectException) as error:
            get_run_logger().warning("%s could not be cancelled: %s", member.name, error)
