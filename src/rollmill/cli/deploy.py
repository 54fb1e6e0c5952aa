"""`rollmill deploy`: what a team needs on its Prefect server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rollmill.flows.deploying import Change


def deploy(
    settings: Annotated[Path, typer.Argument(help="The settings file, YAML.", metavar="SETTINGS.yaml")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the settings and every job, say what would change, change nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as a JSON list.")] = False,
) -> None:
    """Set up the Prefect server that PREFECT_API_URL names: work pools, queues, concurrency limits, a deployment for
    each job, automations.

    The same command again changes only what differs from the file; what the file does not name is left.

    Example: rollmill deploy deployments/team.yaml --dry-run
    """
    from rollmill.flows.prefect_server import QUIET_PREFECT

    for name, value in QUIET_PREFECT.items():
        os.environ.setdefault(name, value)
    from rollmill.cli.table import print_table
    from rollmill.flows.deploy_team import deploy_team

    changes = deploy_team(settings, dry_run=dry_run)
    if as_json:
        print(json.dumps([change.to_json() for change in changes]))
        return
    if changes:
        print_table([{"what": change.kind, "name": change.name, "state": _told(change, dry_run)} for change in changes])
    print(_summary(changes, dry_run))


def _told(change: Change, dry_run: bool) -> str:
    done = {"make": "made", "change": "changed", "keep": "as it was"}
    to_do = {"make": "would be made", "change": "would change", "keep": "as it is"}
    fields = f": {', '.join(change.fields)}" if change.fields else ""
    return f"{(to_do if dry_run else done)[change.action]}{fields}"


def _summary(changes: list[Change], dry_run: bool) -> str:
    made, changed = (sum(change.action == action for change in changes) for action in ("make", "change"))
    if not made and not changed:
        return "nothing to change"
    return (
        f"{'would make' if dry_run else 'made'} {made} and change{'' if dry_run else 'd'} {changed} of {len(changes)}"
    )
