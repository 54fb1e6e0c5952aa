"""The rejection-sampling flow: rollouts, the choice among them, and the training set that it becomes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext

from rollmill.errors import RunFailedError
from rollmill.flows.gate import Gate
from rollmill.flows.rejection_sampling_check import CheckedRejectionSampling, check_rejection_sampling
from rollmill.flows.rejection_sampling_job import RejectionSamplingJob
from rollmill.flows.rejection_sampling_report import RejectionSamplingReport
from rollmill.flows.report import RunReport
from rollmill.flows.rollout import roll_out
from rollmill.flows.showing import show_link, show_markdown
from rollmill.flows.task_runs import RETRY_DELAYS, unvisited
from rollmill.flows.terminal import go_on_unread
from rollmill.tasks.export.exporting import Exported, export_training_set


def scheduled_time() -> datetime | None:
    """Return when the flow run in progress was to start; None for one that no deployment started."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return None
    return context.flow_run.expected_start_time


def _name_of_this_run() -> str:
    context = FlowRunContext.get()
    assert context is not None
    assert context.parameters is not None
    job: RejectionSamplingJob = context.parameters["job"]
    return f"rejection-sampling-{job.scheduled_for(scheduled_time()).resolved_run_id}"


@flow(name="rejection-sampling", flow_run_name=_name_of_this_run, persist_result=False, log_prints=False)
def rejection_sampling(job: RejectionSamplingJob) -> RejectionSamplingReport:
    """Answer every prompt of the job, score the answers, and put the training set of the chosen ones in place.

    A run that a deployment starts has a run id of its scheduled time: retried, it goes on where it stopped, and the
    next night's is new. Raises InputError before any weights load, and RunFailedError when the rollouts failed or too
    few records are left; then the place holds what it held before, and the rollouts are kept.
    """
    go_on_unread()
    checked = check_rejection_sampling(job.scheduled_for(scheduled_time()))
    with _all_or_nothing(checked):
        rollouts = roll_out(checked.rollouts)
        training_set = _export(checked, rollouts.version)
    return report(rollouts, training_set)


@contextmanager
def _all_or_nothing(checked: CheckedRejectionSampling) -> Iterator[None]:
    try:
        yield
    except RunFailedError as error:
        raise RunFailedError(f"{error}; no training set was made, and {checked.place.url} is as it was") from error


def _export(checked: CheckedRejectionSampling, version: int) -> Exported:
    return export_task.with_options(retry_condition_fn=Gate().may_retry)(unvisited(checked), version)


@task(name="export", task_run_name="export", retries=3, retry_delay_seconds=RETRY_DELAYS, cache_policy=NO_CACHE,
      persist_result=False)  # fmt: skip
def export_task(checked: CheckedRejectionSampling, version: int) -> Exported:
    """Choose among the rollouts and put the training set in place, as a whole."""
    return export_training_set(
        checked.store,
        checked.place,
        checked.job.export.config,
        versions=versions_of(checked, version),
        overwrite=True,
    )


def versions_of(checked: CheckedRejectionSampling, version: int) -> list[int]:
    """Return the dataset versions that the set is made of: this run's, or the newest of every run of this job."""
    if checked.job.export.mode == "replace":
        return [version]
    runs = checked.store.latest().runs(sys.maxsize)
    return [entry.number for entry in runs if checked.job.owns(entry.run_id)]


def report(rollouts: RunReport, training_set: Exported) -> RejectionSamplingReport:
    """Build the report and keep what concerns the set as an artifact of the flow run."""
    result = RejectionSamplingReport(rollouts=rollouts, training_set=training_set)
    manifest = training_set.manifest
    get_run_logger().info("%d %s records are in %s", manifest.records, manifest.format, training_set.url)
    show_link(
        "training-set-card", f"{training_set.url}/README.md", training_set.url, f"Card of {rollouts.run_id}'s set"
    )
    show_markdown("training-set", result.to_markdown(), f"Training set of {rollouts.run_id}")
    return result
