"""`rollmill ls`: the dataset versions of a store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rollmill.storage.store import RolloutStore
    from rollmill.storage.version import DatasetVersion


def ls(
    store: Annotated[str, typer.Argument(help="A local folder or s3://bucket/prefix.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List the dataset versions of a store, oldest first; those of retired runs can no longer be read.

    Example: rollmill ls ./rollouts
    """
    from rollmill.cli.table import print_table
    from rollmill.storage.store import RolloutStore

    opened = RolloutStore(store)
    versions = opened.versions()
    retired = _retired(opened, {version.run_id for version in versions})
    rows = [{**_row(version), "retired": version.run_id in retired} for version in versions]
    if as_json:
        print(json.dumps(rows))
    elif rows:
        print_table(rows if retired else [_row(version) for version in versions])
    else:
        print(f"{store} has no published version yet")


def _retired(store: RolloutStore, run_ids: set[str]) -> set[str]:
    from rollmill.storage.concurrency import at_once
    from rollmill.storage.retirement import retirement_of

    asked = sorted(run_ids)
    notes = at_once(lambda run_id: retirement_of(store.objects, run_id), asked)
    return {run_id for run_id, note in zip(asked, notes, strict=True) if note}


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
