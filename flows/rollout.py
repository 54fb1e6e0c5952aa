"""The rollout flow: plan, generate and score the shards, publish, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext

from rollmill.errors import JobError
from rollmill.flows.fleet import name_of, run_fleet
from rollmill.flows.job import PublishConfig, RolloutJob, Share
from rollmill.flows.planning import plan_run
from rollmill.flows.preflight import CheckedJob, check_job
from rollmill.flows.progress import Progress
from rollmill.flows.publishing import publish_task
from rollmill.flows.report import RunReport, build_report, shard_table
from rollmill.flows.report_page import make_page
from rollmill.flows.shard_work import RemainingWork, make_shards, remaining_work
from rollmill.flows.showing import show_markdown, show_table, show_tags, show_version
from rollmill.flows.task_runs import unvisited
from rollmill.flows.terminal import go_on_unread
from rollmill.storage.plan import Plan
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.figures import total
from rollmill.tasks.planning import ShardPrompts
from rollmill.tasks.prompts.spool import SpooledPrompts
from rollmill.tasks.shards import ShardRef
from rollmill.tasks.usage import Usage, usage_of_run


def _name_of_this_run() -> str:
    context = FlowRunContext.get()
    assert context is not None
    assert context.parameters is not None
    return name_of(context.parameters["job"], context.parameters.get("share"))


@flow(name="rollout", flow_run_name=_name_of_this_run, persist_result=False, log_prints=False)
def rollout(job: RolloutJob, share: Share | None = None) -> RunReport | None:
    """Answer every prompt of the job, score the answers, and publish them as a new dataset version.

    Shards that are stored already are not made again, so starting a job anew goes on where it stopped. Raises
    InputError before any weights load, and RunFailedError when shards failed for good or too many answers could not be
    scored; all that is finished is kept. With a `share`, which a fleet's parent gives, only its shards are made, and
    nothing is published or returned.
    """
    go_on_unread()
    if share is None:
        return roll_out(check_job(job))
    make_share(check_job(job), share)
    return None


def roll_out(checked: CheckedJob) -> RunReport:
    """Do what `rollout` does, within the flow run in progress, for a job that is checked."""
    job = checked.job
    show_tags(job.policy.model, job.policy.version, job.prompts.source)
    plan, dataset = plan_task(unvisited(checked))
    with dataset:
        prompts = ShardPrompts(checked.run, dataset)
        work = remaining_work(checked, plan)
        prompts.keep(shard for shard in plan.shards if shard.index not in work.to_generate)
        with progress_of(work) as progress:
            if job.fleet.size > 1:
                settled = run_fleet(checked, plan, work, progress)
                work = remaining_work(checked, plan, settled=settled)
            shards = make_shards(checked, plan, prompts, work, progress)
    used = usage_of_run(checked.run, [shard.index for shard in shards], job.engine.price_per_device_hour)
    figures = total(shard.stats for shard in shards)
    version = publish_task(unvisited(checked), unvisited(plan), unvisited(figures), unvisited(used))
    result = report(checked, version, shards, used, progress)
    make_page(job, version)
    return result


@task(name="plan", task_run_name="plan", cache_policy=NO_CACHE, persist_result=False)
def plan_task(checked: CheckedJob) -> tuple[Plan, SpooledPrompts]:
    """Read the prompts and open the run's plan."""
    return plan_run(checked)


def make_share(checked: CheckedJob, share: Share) -> None:
    """Make the shards of a share, and publish nothing. Raises JobError for shards that the plan does not have."""
    job = checked.job
    show_tags(job.policy.model, job.policy.version, job.prompts.source)
    checked = replace(checked, job=job.model_copy(update={"publish": PublishConfig()}))
    plan, dataset = plan_task(unvisited(checked))
    with dataset:
        _make_share(checked, plan, ShardPrompts(checked.run, dataset), share)


def _make_share(checked: CheckedJob, plan: Plan, prompts: ShardPrompts, share: Share) -> None:
    absent = set(share.shards).difference(shard.index for shard in plan.shards)
    if absent:
        raise JobError(f"share.shards: run {plan.run_id} has {len(plan.shards)} shards, and no {min(absent)}")
    work = remaining_work(checked, plan, only=frozenset(share.shards))
    with progress_of(work) as progress:
        made = make_shards(checked, plan, prompts, work, progress)
    show_table("rollout-shards", shard_table(made), f"Shards of share {share.index} of {plan.run_id}")


def progress_of(work: RemainingWork) -> Progress:
    """Return what counts and shows how far a run or a share is."""
    return Progress(
        work.total_rows,
        answered_before=work.rows_before,
        scored_before=sum(shard.num_rows for shard in work.finished),
        to_answer=work.to_generate,
    )


def report(
    checked: CheckedJob, version: DatasetVersion, shards: Sequence[ShardRef], used: Usage, progress: Progress
) -> RunReport:
    """Build the report and keep it, the shard table and a link to the version as artifacts of the flow run."""
    result = build_report(
        checked.run,
        version,
        shards,
        usage=used,
        new_rows=progress.num_rows,
        new_tokens=progress.num_tokens,
        seconds=progress.seconds,
    )
    get_run_logger().info("published version %d of %s", result.version, result.store)
    show_version("rollout-version", version)
    show_table("rollout-shards", shard_table(shards), f"Shards of {result.run_id}")
    show_markdown("rollout-report", result.to_markdown(), f"Report of {result.run_id}")
    return result
