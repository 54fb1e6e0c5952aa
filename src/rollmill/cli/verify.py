"""`rollmill verify`: check everything that a store holds against everything that it promised."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer


def verify(
    store: Annotated[str, typer.Argument(help="A local folder or s3://bucket/prefix.")],
    version: Annotated[int | None, typer.Option(help="Check only what this dataset version reaches.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check markers, checksums, schema, ledger, and that every group is whole; exit status 1 when anything is wrong.

    Example: rollmill verify ./rollouts
    """
    from rollmill.storage.store import RolloutStore
    from rollmill.storage.verify import verify_store

    report = verify_store(RolloutStore(store), version)
    if as_json:
        print(json.dumps(asdict(report), ensure_ascii=False))
    else:
        for problem in report.problems:
            print(f"{problem.where}: {problem.what}")
        print(
            f"{report.num_versions} versions, {report.num_runs} runs, {report.num_markers} shard markers, "
            f"{report.num_files} files, {report.num_rows} rows in {report.num_groups} groups: "
            + (f"{len(report.problems)} problems" if report.problems else "all sound")
        )
    if report.problems:
        raise typer.Exit(1)
