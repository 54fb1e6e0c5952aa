"""A whole settings file on a Prefect server: pools first, then what runs in them, then what watches over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient

from rollmill.flows.deploy_automations import automation_pieces
from rollmill.flows.deploy_jobs import deployment_piece
from rollmill.flows.deploy_pools import ConcurrencyLimitPiece, QueuePiece, WorkPoolPiece
from rollmill.flows.deploy_settings import TeamSettings, load_settings
from rollmill.flows.deploying import Change, Piece, deploy, server_client


def deploy_team(path: Path, *, dry_run: bool = False) -> list[Change]:
    """Bring the Prefect server to what the settings at `path` say, and return what was done, piece by piece.

    Everything is read and checked before anything is made. What the settings do not name is left as it is. With
    `dry_run` nothing is changed. Raises JobError for wrong settings, a wrong job, or a server that does not answer.
    """
    settings = load_settings(path)
    with server_client() as client:
        return [deploy(piece, dry_run=dry_run) for piece in list(_pieces(client, settings))]


def _pieces(client: SyncPrefectClient, settings: TeamSettings) -> Iterator[Piece]:
    for pool in settings.work_pools:
        yield WorkPoolPiece(client, pool)
        yield from (QueuePiece(client, pool.name, queue, place) for place, queue in enumerate(pool.queues, start=1))
    yield from (ConcurrencyLimitPiece(client, limit) for limit in settings.concurrency_limits)
    yield from (deployment_piece(client, deployment) for deployment in settings.deployments)
    yield from automation_pieces(client, settings.automations)
