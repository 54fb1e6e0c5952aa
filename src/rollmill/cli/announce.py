"""`rollmill announce`: tell of new weights."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer


def announce(
    model: Annotated[
        str, typer.Argument(help="Where the weights are, as in a job's policy.model, seen from the workers.")
    ],
    version: Annotated[int, typer.Argument(min=0, help="The trainer's number for these weights.")],
    name: Annotated[str, typer.Option(help="Whose weights they are; deployments follow one name.")] = "policy",
    as_json: Annotated[bool, typer.Option("--json", help="Print the announcement as JSON.")] = False,
) -> None:
    """Announce a policy's new weights to the Prefect server, which starts the deployments that follow it.

    The server is the one that PREFECT_API_URL names. Programs call rollmill.announce_policy.

    Example: rollmill announce s3://bucket/policies/step-1200 1200 --name arithmetic
    """
    from rollmill.flows.prefect_server import QUIET_PREFECT

    for variable, value in QUIET_PREFECT.items():
        os.environ.setdefault(variable, value)
    from rollmill.flows.announcing import announce_policy

    announced = announce_policy(model, version, name=name)
    print(json.dumps(announced.to_json()) if as_json else f"announced version {version} of {name}: {model}")
