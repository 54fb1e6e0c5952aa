"""`rollmill follow`: let a deployment run for each policy that is announced."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer


def follow(
    deployment: Annotated[str, typer.Argument(help="The deployment, as in rollout/arithmetic.")],
    name: Annotated[str, typer.Option(help="Whose weights it follows: the name that they are announced by.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Let a deployment run each time that a policy is announced, with the announced weights and version in its job.

    The same command again makes no second automation, and takes the deployment's job anew when that has changed.

    Example: rollmill follow rollout/arithmetic --name arithmetic
    """
    from rollmill.flows.prefect_server import QUIET_PREFECT

    for variable, value in QUIET_PREFECT.items():
        os.environ.setdefault(variable, value)
    from rollmill.flows.announced_policies import ensure_rollout_on_announcement

    followed = ensure_rollout_on_announcement(deployment, name=name)
    if as_json:
        print(json.dumps(followed.to_json()))
    else:
        print(f"{followed.action}: {followed.automation}")
