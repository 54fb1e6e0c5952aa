"""The rollout flow: plan, generate and score the shards, publish, report."""

from __future__ import annotations

from collections.abc import Sequence

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from rollmill.flows.job import RolloutJob
from rollmill.flows.planning import plan_run
from rollmill.flows.preflight import CheckedJob, check_job
from rollmill.flows.progress import Progress
from rollmill.flows.publishing import publish_task
from rollmill.flows.report import RunReport, build_report, shard_table
from rollmill.flows.shard_work import RemainingWork, make_shards, remaining_work
from rollmill.flows.task_runs import unvisited
from rollmill.storage.plan import Plan
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.shards import ShardRef


@flow(name="rollout", flow_run_name="rollout-{job.resolved_run_id}", persist_result=False, log_prints=False)
def rollout(job: RolloutJob) -> RunReport:
    """Answer every prompt of the job, score the answers, and publish them as a new dataset version.

    Shards that are stored already are not made again, so starting a job anew goes on where it stopped. Raises
    InputError before any weights load, and RunFailedError when shards failed for good or too many answers could not be
    scored; all that is finished is kept.
    """
    return roll_out(check_job(job))


def roll_out(checked: CheckedJob) -> RunReport:
    """Do what `rollout` does, within the flow run in progress, for a job that is checked."""
    plan = plan_task(unvisited(checked))
    work = remaining_work(checked, plan)
    with _progress(work) as progress:
        shards = make_shards(checked, plan, work, progress)
    version = publish_task(unvisited(checked), unvisited(plan))
    return report(checked, version, shards, progress)


@task(name="plan", task_run_name="plan", cache_policy=NO_CACHE, persist_result=False)
def plan_task(checked: CheckedJob) -> Plan:
    """Read the prompts and open the run's plan."""
    return plan_run(checked)


def _progress(work: RemainingWork) -> Progress:
    return Progress(
        work.total_rows,
        answered_before=work.rows_before,
        scored_before=sum(shard.num_rows for shard in work.finished),
        to_answer=work.to_generate,
    )


def report(checked: CheckedJob, version: DatasetVersion, shards: Sequence[ShardRef], progress: Progress) -> RunReport:
    """Build the report and keep it and the shard table as artifacts of the flow run."""
    result = build_report(
        checked.run,
        version,
        shards,
        new_rows=progress.num_rows,
        new_tokens=progress.num_tokens,
        seconds=progress.seconds,
    )
    get_run_logger().info("published version %d of %s", result.version, result.store)
    create_table_artifact(shard_table(shards), key="rollout-shards", description=f"Shards of {result.run_id}")
    create_markdown_artifact(result.to_markdown(), key="rollout-report", description=f"Report of {result.run_id}")
    return result
