"""Publishing a run: all of it at its end, and what is finished while it still goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectConcurrentFuture
from prefect.task_runners import ThreadPoolTaskRunner

from rollmill.errors import RollmillError
from rollmill.flows.failures import FailedRewards
from rollmill.flows.gate import Gate
from rollmill.flows.news import tell_published
from rollmill.flows.preflight import CheckedJob
from rollmill.flows.task_runs import RETRY_DELAYS, unvisited
from rollmill.storage.plan import Plan
from rollmill.storage.publish import publish_run, published_entry
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.figures import Figures, total
from rollmill.tasks.scoring import score_stage
from rollmill.tasks.usage import Usage


@task(name="publish", task_run_name="publish", retries=3, retry_delay_seconds=RETRY_DELAYS, cache_policy=NO_CACHE,
      persist_result=False)  # fmt: skip
def publish_task(checked: CheckedJob, plan: Plan, figures: Figures, used: Usage) -> DatasetVersion:
    """Prove the ledger of the run, append it to the store's log, and tell Prefect of it."""
    return _publish(checked, plan, figures, None, used)


@task(name="publish-part", task_run_name="{name}", retries=3, retry_delay_seconds=RETRY_DELAYS, cache_policy=NO_CACHE,
      persist_result=False)  # fmt: skip
def publish_part_task(
    name: str,  # noqa: ARG001  (names the task run)
    checked: CheckedJob,
    plan: Plan,
    figures: Figures,
    shards: Sequence[int],
) -> int:
    """Prove the ledger of shards that are not published yet, append a version that has them, and return its number."""
    version = _publish(checked, plan, figures, shards, Usage())
    get_run_logger().info(
        "published version %d with %d of %d shards", version.number, len(version.files), len(plan.shards)
    )
    return version.number


def _publish(
    checked: CheckedJob, plan: Plan, figures: Figures, shards: Sequence[int] | None, used: Usage
) -> DatasetVersion:
    began, stage = datetime.now(UTC), score_stage(checked.scorer)
    version = publish_run(
        checked.run.objects,
        plan,
        stage,
        policy_version=checked.job.policy.version,
        shards=shards,
    )
    if figures.rows != version.num_rows:  # another start of this run has published more of it
        markers = checked.run.markers(stage, [file.shard for file in version.files])
        figures = total(marker.stats for marker in markers.values())
    tell_published(version, figures, used, began)
    return version


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a run's newest version has when the run is started.

    shards    those that were scored by this job's rewards; none when it was scored by others
    replaced  those of a version that was scored by others: no part takes its place before it has as many
    """

    shards: frozenset[int] = frozenset()
    replaced: frozenset[int] = frozenset()


def published_before(checked: CheckedJob, plan: Plan) -> Published:
    """Ask the store's log what of the run is published."""
    entry = published_entry(checked.run.objects, plan.run_id)
    if entry is None:
        return Published()
    shards = frozenset(file.shard for file in entry.files)
    ours = (entry.stage, entry.policy_version) == (score_stage(checked.scorer), checked.job.policy.version)
    return Published(shards=shards) if ours else Published(replaced=shards)


class Publishing:
    """Publishes a run's finished shards while it goes on, each time that `every_shards` of them are new.

    One part is published at a time. What is finished meanwhile, and what could not be published, goes with the next;
    the last shards are left to the end of the run, which publishes all of it. A part of which more answers failed
    than a run may have waits for better ones, and none begins once the gate is closed.
    """

    def __init__(
        self,
        submit: Callable[[Sequence[int]], PrefectConcurrentFuture[int]],
        every_shards: int,
        num_shards: int,
        before: Published,
        failed: FailedRewards,
        gate: Gate,
    ) -> None:
        self._submit = submit
        self._every_shards = every_shards
        self._num_shards = num_shards
        self._failed = failed
        self._gate = gate
        self._finished: set[int] = set()
        self._published = before.shards
        self._replaced = before.replaced
        self._part: tuple[frozenset[int], PrefectConcurrentFuture[int]] | None = None

    def add(self, shards: Iterable[int]) -> None:
        """Take in shards that are finished, and begin to publish a part when it is time; wait for nothing."""
        self._finished.update(shards)
        if self._part is not None and self._part[1].wrapped_future.done():
            self.collect()
        if self._part is None and self._is_time():
            self._part = (frozenset(self._finished), self._submit(sorted(self._finished)))

    def collect(self) -> None:
        """Wait for the part that is being published, if there is one, and say so when it failed."""
        if self._part is None:
            return
        shards, future = self._part
        self._part = None
        future.wait()
        if future.state.is_completed():
            self._published |= shards
            return
        error = future.result(raise_on_failure=False)
        if not isinstance(error, (RollmillError, OSError)):
            future.result()
        get_run_logger().warning("%s; its shards are published with the next part", error)

    def _is_time(self) -> bool:
        new = self._finished - self._published
        return (
            self._gate.is_open
            and len(new) >= self._every_shards
            and len(self._finished) < self._num_shards
            and self._finished >= self._replaced
            and self._failed.may_publish(self._finished)
        )


@contextmanager
def publishing_as_it_goes(
    checked: CheckedJob, plan: Plan, finished: Iterable[int], failed: FailedRewards, gate: Gate
) -> Iterator[Callable[[Iterable[int]], None]]:
    """Yield what takes in the shards that a run finishes; `finished` are those that it has already.

    They are published as the job's `publish` says. At the end of the block no part is being published any more.
    """
    every_shards = checked.job.publish.every_shards
    if every_shards is None:
        yield lambda _: None
        return
    publish = publish_part_task.with_options(retry_condition_fn=gate.may_retry)
    with ThreadPoolTaskRunner[int](max_workers=1) as thread:

        def submit(shards: Sequence[int]) -> PrefectConcurrentFuture[int]:
            parameters = {
                "name": f"publish-{len(shards)}-shards", "checked": unvisited(checked), "plan": unvisited(plan),
                "figures": unvisited(failed.figures(shards)), "shards": unvisited(shards),
            }  # fmt: skip
            return thread.submit(publish, parameters)

        before = published_before(checked, plan)
        publishing = Publishing(submit, every_shards, len(plan.shards), before, failed, gate)
        publishing.add(finished)
        yield publishing.add
        publishing.collect()
