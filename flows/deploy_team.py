"""A whole settings file on a Prefect server: pools first, then what runs in them, then what watches over it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from prefect.client.orchestration import SyncPrefectClient

from rollmill.flows.announced_policies import ensure_rollout_on_announcement, follower_of
from rollmill.flows.deploy_automations import AutomationPiece, automation_pieces
from rollmill.flows.deploy_jobs import DeploymentPiece, deployment_piece
from rollmill.flows.deploy_pools import ConcurrencyLimitPiece, QueuePiece, WorkPoolPiece
from rollmill.flows.deploy_settings import TeamSettings, load_settings
from rollmill.flows.deploying import Change, Piece, deploy, server_client

_ACTIONS: dict[str, Literal["make", "change", "keep"]] = {"made": "make", "changed": "change", "kept": "keep"}


def deploy_team(path: Path, *, dry_run: bool = False) -> list[Change]:
    """Bring the Prefect server to what the settings at `path` say, and return what was done, piece by piece.

    Everything is read and checked before anything is made. What the settings do not name is left as it is. With
    `dry_run` nothing is changed. Raises JobError for wrong settings, a wrong job, or a server that does not answer.
    """
    settings = load_settings(path)
    with server_client() as client:
        changes = [deploy(piece, dry_run=dry_run) for piece in list(_pieces(client, settings))]
    return [*changes, *_followed(settings, changes, dry_run)]


def _followed(settings: TeamSettings, changes: Sequence[Change], dry_run: bool) -> Iterator[Change]:
    """Let deployments follow policies, once they are there: the automation holds the deployment's own job."""
    deployments = [change for change in changes if change.kind == DeploymentPiece.kind]
    for deployment, change in zip(settings.deployments, deployments, strict=True):
        if deployment.follows is None:
            continue
        if dry_run and change.action == "make":
            yield Change(AutomationPiece.kind, follower_of(change.name, deployment.follows), "make", ())
            continue
        done = ensure_rollout_on_announcement(change.name, name=deployment.follows, dry_run=dry_run)
        yield Change(AutomationPiece.kind, done.automation, _ACTIONS[done.action], ())


def _pieces(client: SyncPrefectClient, settings: TeamSettings) -> Iterator[Piece]:
    for pool in settings.work_pools:
        yield WorkPoolPiece(client, pool)
        yield from (QueuePiece(client, pool.name, queue, place) for place, queue in enumerate(pool.queues, start=1))
    yield from (ConcurrencyLimitPiece(client, limit) for limit in settings.concurrency_limits)
    yield from (deployment_piece(client, deployment) for deployment in settings.deployments)
    yield from automation_pieces(client, settings.automations)
