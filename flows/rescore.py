"""The rescore flow: score the answers of a dataset version anew, and publish them as another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.task_runners import ThreadPoolTaskRunner

from rollmill.flows.batches import Pair, batched, gather, refuse_failures, shards_name
from rollmill.flows.failures import FailedRewards
from rollmill.flows.gate import Gate
from rollmill.flows.news import tell_published
from rollmill.flows.progress import Progress
from rollmill.flows.report import shard_table
from rollmill.flows.rescore_check import CheckedRescore, check_rescore
from rollmill.flows.rescore_job import RescoreJob
from rollmill.flows.rescore_report import RescoreReport
from rollmill.flows.shard_work import score_task
from rollmill.flows.showing import show_markdown, show_table, show_tags, show_version
from rollmill.flows.task_runs import MAX_TASK_RUNS, RETRY_DELAYS, unvisited
from rollmill.flows.terminal import go_on_unread
from rollmill.storage.publish import publish_run
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.figures import Figures, total
from rollmill.tasks.scoring import failed_shards
from rollmill.tasks.shards import ShardRef, reference
from rollmill.tasks.usage import Usage

_SHARDS_AT_ONCE = 4


@flow(name="rescore", flow_run_name="rescore-{job.title}", persist_result=False, log_prints=False)
def rescore(job: RescoreJob) -> RescoreReport:
    """Score the answers of a dataset version by other rewards, and publish them as a new version.

    The policy is not loaded, the old version stays as it is, and in the new one only rewards differ. Started anew, it
    goes on where it stopped. Raises InputError before anything is scored, and RunFailedError when shards failed for
    good or too many answers could not be scored.
    """
    go_on_unread()
    checked = check_rescore(job)
    policy, prompts = checked.plan.identity.get("policy", {}), checked.plan.identity.get("prompts", {})
    show_tags(str(policy.get("model")), checked.version.policy_version, str(prompts.get("source")))
    shards = _score(checked)
    version = publish_rescored_task(unvisited(checked), unvisited(total(shard.stats for shard in shards)))
    return _report(checked, version, shards)


@task(name="publish", task_run_name="publish", retries=3, retry_delay_seconds=RETRY_DELAYS, cache_policy=NO_CACHE,
      persist_result=False)  # fmt: skip
def publish_rescored_task(checked: CheckedRescore, figures: Figures) -> DatasetVersion:
    """Prove the ledger of the rescored run, append it to the store's log, and tell Prefect of it."""
    entry, began = checked.version.entry, datetime.now(UTC)
    version = publish_run(
        checked.version.objects,
        checked.plan,
        checked.work.stage,
        policy_version=entry.policy_version,
        shards=None if entry.complete else [file.shard for file in entry.files],
    )
    tell_published(version, figures, Usage(), began)
    return version


def _score(checked: CheckedRescore) -> list[ShardRef]:
    """Score what is not scored yet, a few shards at a time, and return all shards in order."""
    work, files = checked.work, checked.version.files
    markers = work.run.finished(work.stage, [file.shard for file in files])
    again = failed_shards(markers)
    done = [reference(work.stage, marker) for index, marker in markers.items() if index not in again]
    missing = [checked.plan.shards[file.shard] for file in files if file.shard not in markers or file.shard in again]
    gate = Gate()
    failed = _failed_rewards(checked, gate)
    for shard in done:
        failed.add(shard.index, shard.stats)
    threads = ThreadPoolTaskRunner[list[ShardRef]](max_workers=_SHARDS_AT_ONCE)
    num_rows = checked.version.num_rows
    scored_before = sum(shard.num_rows for shard in done)
    with (
        Progress(num_rows, answered_before=num_rows, scored_before=scored_before, to_answer=()) as progress,
        threads,
    ):
        try:
            pairs: list[Pair] = []
            for batch in batched(missing, max_batches=MAX_TASK_RUNS - 2):
                parameters = {
                    "name": shards_name(batch), "work": unvisited(replace(work, again=again)),
                    "shards": unvisited(batch), "failed": unvisited(failed), "progress": unvisited(progress),
                }  # fmt: skip
                score = score_task.with_options(retry_condition_fn=gate.may_retry)
                pairs.append((shards_name(batch), None, threads.submit(score, parameters)))
            outcome = gather(pairs, gate)
        except BaseException:
            gate.close()
            raise
    failed.check()
    refuse_failures(outcome, checked.plan.run_id)
    return sorted([*done, *outcome.finished], key=lambda shard: shard.index)


def _failed_rewards(checked: CheckedRescore, gate: Gate) -> FailedRewards:
    return FailedRewards(
        f"version {checked.version.number} of {checked.version.objects.url}",
        max_fraction=checked.job.max_failed_fraction,
        total_rows=checked.version.num_rows,
        gate=gate,
        remedy="When the cause is gone, the same command computes only these again; max_failed_fraction 1 publishes "
        "the version without them",
    )


def _report(checked: CheckedRescore, version: DatasetVersion, shards: Sequence[ShardRef]) -> RescoreReport:
    result = RescoreReport(
        run_id=version.run_id,
        store=version.objects.url,
        version=version.number,
        from_version=checked.version.number,
        policy_version=version.policy_version,
        num_shards=len(shards),
        figures=total(shard.stats for shard in shards),
        before=_before(checked),
    )
    get_run_logger().info("published version %d of %s", result.version, result.store)
    show_version("rescore-version", version)
    show_table("rescore-shards", shard_table(shards), f"Shards of {result.run_id}")
    show_markdown("rescore-report", result.to_markdown(), f"Rescoring of {result.run_id}")
    return result


def _before(checked: CheckedRescore) -> Figures | None:
    """Return the figures of the version that was rescored, if its shards' markers have them and still stand for its
    files."""
    files = checked.version.files
    markers = checked.work.run.markers(checked.version.entry.stage, [file.shard for file in files])
    stand = [marker for file in files if (marker := markers.get(file.shard)) and marker.file == file.file]
    counted = len(stand) == len(files) and all("reasons" in marker.stats for marker in stand)
    return total(marker.stats for marker in stand) if counted else None
