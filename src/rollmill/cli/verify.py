"""`rollmill verify`: check everything that a store holds against everything that it promised."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer


def verify(
    store: Annotated[str, typer.Argument(help="A local folder or s3://bucket/prefix.")],
    version: Annotated[int | None, typer.Option(help="Check only what this dataset version reaches.")] = None,
    logprobs: Annotated[
        bool,
        typer.Option("--logprobs", help="Also load the policy and recompute the log-probabilities of some answers."),
    ] = False,
    sample: Annotated[int, typer.Option(min=1, help="How many answers --logprobs recomputes.")] = 64,
    model: Annotated[str | None, typer.Option(help="Recompute with this policy, should the run's have moved.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="Largest difference of a log-probability that --logprobs lets pass.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check markers, checksums, schema, ledger, and that every group is whole; exit status 1 when anything is wrong.

    Example: rollmill verify ./rollouts --logprobs --sample 32
    """
    from rollmill.storage.store import RolloutStore
    from rollmill.storage.verify import verify_store

    opened = RolloutStore(store)
    report = verify_store(opened, version)
    found = asdict(report)
    sound = not report.problems
    if not as_json:
        for problem in report.problems:
            print(f"{problem.where}: {problem.what}")
        print(
            f"{report.num_versions} versions, {report.num_runs} runs, {report.num_markers} shard markers, "
            f"{report.num_files} files, {report.num_rows} rows in {report.num_groups} groups: "
            + (f"{len(report.problems)} problems" if report.problems else "all sound")
        )
    if logprobs and sound:
        from rollmill.tasks.auditing import audit_version

        checked = opened.latest() if version is None else opened.version(version)
        audit = audit_version(checked, num_answers=sample, model=model, tolerance=tolerance)
        sound, found["logprobs"] = audit.is_sound, asdict(audit)
        if not as_json:
            print(audit)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    if not sound:
        raise typer.Exit(1)
