"""`rollmill rescore`: other rewards for answers that are there already."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollmill.cli.run import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from rollmill.flows.rescore_job import RescoreJob
    from rollmill.flows.rescore_report import RescoreReport


def rescore(
    store: Annotated[str, typer.Argument(help="A local folder or s3://bucket/prefix.")],
    rewards: Annotated[
        list[str] | None,
        typer.Option(
            "--reward",
            metavar="REWARD",
            help="A kind with its fields, as in length:max=200,weight=0.1; a mapping in YAML or JSON; or a job file, "
            "whose rewards are taken. Again for several.",
        ),
    ] = None,
    version: Annotated[int | None, typer.Option(help="The dataset version; the latest when not given.")] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="Score only rows of which this holds, as in 'reward < 0.5 and finish_reason == \"stop\"'.",
        ),
    ] = None,
    failed: Annotated[
        bool,
        typer.Option(
            "--failed", help="Score only rows whose reward could not be computed; without --reward as before."
        ),
    ] = False,
    max_failed_fraction: Annotated[
        float, typer.Option(help="The share of answers that may go without a reward in what is published.")
    ] = 0.1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Score the answers of a dataset version by other rewards, and publish them as a new version.

    The policy is not loaded, nothing is generated, and the old version stays as it is.

    Example: rollmill rescore ./rollouts --reward math --reward length:max=200,weight=0.1
    """
    from rollmill.flows.prefect_server import QUIET_PREFECT

    for name, value in QUIET_PREFECT.items():
        os.environ.setdefault(name, value)
    from rollmill.flows.job_file import check_values
    from rollmill.flows.rescore_job import RescoreJob
    from rollmill.flows.reward_options import read_rewards

    values: dict[str, Any] = {
        "store": store,
        "version": version,
        "rewards": read_rewards(rewards) if rewards else None,
        "where": where,
        "failed": failed,
        "max_failed_fraction": max_failed_fraction,
    }
    report = _rescore(check_values(RescoreJob, values, "rescore"))
    print(json.dumps(report.to_json(), ensure_ascii=False) if as_json else report.to_text())


def _rescore(job: RescoreJob) -> RescoreReport:
    from rollmill.flows.command import run_rescore

    try:
        return run_rescore(job)
    except KeyboardInterrupt:
        sys.stderr.write(
            f"rollmill: interrupted; what is scored is kept in {job.store}, and the same command goes on from there\n"
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None
