"""`rollmill run`: run a job, or say what it would do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rollmill.flows.job import RolloutJob
    from rollmill.flows.rejection_sampling_report import RejectionSamplingReport
    from rollmill.flows.report import RunReport

EXIT_INTERRUPTED = 130
"""What shells expect of a command that ended by Ctrl-C."""


def run(
    job: Annotated[Path, typer.Argument(help="The job file, YAML.", metavar="JOB.yaml")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Change a field of the job, as in --set sampling.group_size=4."),
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Write to this folder or s3:// address, not to the job's store.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the job, show the plan and one prompt; load and write nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run a job: answer its prompts, score the answers, publish a dataset version, and make the training set of a job
    that has a section export.

    The same command again goes on where the last one stopped, and does nothing when all is done.

    Example: rollmill run deployments/jobs/demo.yaml --set sampling.group_size=4 --store s3://bucket/rollouts
    """
    from rollmill.flows.prefect_server import QUIET_PREFECT

    for name, value in QUIET_PREFECT.items():
        os.environ.setdefault(name, value)
    from rollmill.flows.job_file import load_job

    loaded = load_job(job, changes or [], store)
    if dry_run:
        _dry_run(loaded, as_json)
        return
    report = _run(loaded)
    print(json.dumps(report.to_json(), ensure_ascii=False) if as_json else report.to_text())


def _dry_run(job: RolloutJob, as_json: bool) -> None:
    from rollmill.flows.dry_run import look_ahead

    outlook = look_ahead(job)
    print(json.dumps(outlook.to_json(), ensure_ascii=False) if as_json else outlook.to_text())


def _run(job: RolloutJob) -> RunReport | RejectionSamplingReport:
    from rollmill.flows.command import run_job, run_rejection_sampling
    from rollmill.flows.rejection_sampling_job import RejectionSamplingJob

    try:
        return run_rejection_sampling(job) if isinstance(job, RejectionSamplingJob) else run_job(job)
    except KeyboardInterrupt:
        sys.stderr.write(
            f"rollmill: interrupted; the finished shards of run {job.resolved_run_id} are kept in {job.store}, and "
            "the same command goes on from there\n"
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None
