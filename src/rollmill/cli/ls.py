"""`rollmill ls`: the dataset versions of a store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rollmill.storage.version import DatasetVersion


def ls(
    store: Annotated[str, typer.Argument(help="A local folder or s3://bucket/prefix.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List the dataset versions of a store, oldest first.

    Example: rollmill ls ./rollouts
    """
    from rollmill.cli.table import print_table
    from rollmill.storage.store import RolloutStore

    versions = [_row(version) for version in RolloutStore(store).versions()]
    if as_json:
        print(json.dumps(versions))
    elif versions:
        print_table(versions)
    else:
        print(f"{store} has no published version yet")


def _row(version: DatasetVersion) -> dict[str, object]:
    return {
        "version": version.number,
        "run": version.run_id,
        "policy version": version.policy_version,
        "scored": version.entry.stage,
        "groups": version.num_groups,
        "rows": version.num_rows,
        "files": len(version.files),
        "whole": version.entry.complete,
        "bytes": sum(file.bytes for file in version.files),
        "created": version.created_at,
    }
