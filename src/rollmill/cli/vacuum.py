"""`rollmill vacuum`: remove what killed writers left in a store, and what is out of use."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Annotated

import typer

_AGE = re.compile(r"(?P<number>\d{1,5})(?P<unit>[mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def vacuum(
    store: Annotated[str, typer.Argument(help="A local folder or s3://bucket/prefix.")],
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Look only at what is older: 12h, 7d, 2w.")] = "7d",
    keep_versions: Annotated[
        int | None,
        typer.Option(metavar="N", help="Also retire the runs that neither the N newest versions nor a reader holds."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Remove data files that no version and no shard refers to, and temporary files, that killed workers left.

    With --keep-versions, runs are retired as well: all their files are removed, and their versions can be listed but no
    longer read. Kept are runs whose versions were among the N newest at any moment since AGE ago, that somebody has
    worked on since then, or that a reader has pinned.

    Example: rollmill vacuum ./rollouts --older-than 7d --keep-versions 10 --dry-run
    """
    from rollmill.storage.objects import open_objects
    from rollmill.storage.vacuum import vacuum_store

    age = _age(older_than)
    report = vacuum_store(open_objects(store), older_than=age, keep_versions=keep_versions, dry_run=dry_run)
    keys = [stored.key for stored in report.removed]
    pins = {pin.consumer: pin.version for pin in report.pins}
    if as_json:
        summary = {"removed": keys, "bytes": report.num_bytes, "dry_run": dry_run, "pins": pins}
        counts = {"referenced": report.num_referenced, "young": report.num_young}
        print(json.dumps({**summary, "retired": report.retired, **counts}))
        return
    for key in keys:
        print(key)
    print(
        f"{'would remove' if dry_run else 'removed'} {len(keys)} objects, {report.num_bytes} bytes; "
        f"kept {report.num_referenced} older ones that are in use and {report.num_young} that are not {older_than} old"
    )
    for run_id in report.retired:
        print(f"run {run_id} {'would be' if dry_run else 'is'} retired")
    for consumer, version in pins.items():
        print(f"version {version} is held by {consumer}")


def _age(text: str) -> timedelta:
    from rollmill.errors import JobError

    match = _AGE.fullmatch(text)
    if match is None:
        raise JobError(f"--older-than must be a number with m, h, d or w, as in 12h or 7d, got {text!r}")
    return timedelta(**{_UNITS[match["unit"]]: int(match["number"])})
