"""Bringing a Prefect server to what a settings file says, piece by piece, and nothing more than that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from rollmill.errors import JobError, RollmillError

Values = Mapping[str, Any]


class Piece(ABC):
    """One thing on the server: what it shall be, what it is, and how it becomes that."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called, among those of its kind."""

    @abstractmethod
    def wanted(self) -> Values:
        """Return what the settings say of it, by field. Raises JobError for what cannot be."""

    @abstractmethod
    def current(self) -> Values | None:
        """Return at least these fields as they are on the server; None, or ObjectNotFound raised: it is not there."""

    @abstractmethod
    def make(self, wanted: Values) -> None:
        """Make it."""

    @abstractmethod
    def change(self, wanted: Values, fields: Sequence[str]) -> None:
        """Change these fields of one that is there."""


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a piece, or would become of it."""

    kind: str
    name: str
    action: Literal["make", "change", "keep"]
    fields: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def deploy(piece: Piece, *, dry_run: bool = False) -> Change:
    """Make a piece that the server lacks, change the fields that differ, and leave all else as it is.

    Returns what was done, or with `dry_run` what would be. Raises JobError when the server refuses it.
    """
    try:
        wanted, current = piece.wanted(), _current(piece)
        if current is None:
            if not dry_run:
                piece.make(wanted)
            return Change(piece.kind, piece.name, "make", ())
        fields = tuple(name for name, value in wanted.items() if current[name] != value)
        if fields and not dry_run:
            piece.change(wanted, fields)
    except httpx.HTTPStatusError as error:
        raise JobError(f"{piece.kind} {piece.name}: the Prefect server refused it: {_reason(error)}") from error
    except PrefectException as error:
        raise JobError(f"{piece.kind} {piece.name}: {' '.join(str(error).split())}") from error
    return Change(piece.kind, piece.name, "change" if fields else "keep", fields)


def _current(piece: Piece) -> Values | None:
    try:
        return piece.current()
    except ObjectNotFound:
        return None


def put_automation(client: SyncPrefectClient, automation_id: UUID, wanted: AutomationCore, enabled: bool) -> None:
    """Put an automation in place of one that is there, switched on or off as that was.

    Prefect sends only fields that were set: without this, an action would lose its type and be taken for another.
    """
    whole = AutomationCore.model_validate(
        {**wanted.model_dump(mode="json", exclude={"owner_resource"}), "enabled": enabled}
    )
    client.update_automation(automation_id, whole)


@contextmanager
def server_client() -> Iterator[SyncPrefectClient]:
    """Yield a client of the server that Prefect's settings name, after it has answered.

    Raises JobError when none does, and RollmillError when it goes away within the block.
    """
    url = PREFECT_API_URL.value()
    if not url:
        raise JobError(
            "there is no Prefect server to set up: PREFECT_API_URL must name one, as in http://127.0.0.1:4200/api"
        )
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(sync_client=True) as client:
        error = client.api_healthcheck()
    if error is not None:
        raise JobError(
            f"PREFECT_API_URL names {url}, which does not answer ({error}): start it, or correct the address"
        )
    try:
        with get_client(sync_client=True) as client:
            yield client
    except httpx.TransportError as error:
        raise RollmillError(
            f"the Prefect server at {url} does not answer any more ({error}); the same command goes on from there"
        ) from error


def _reason(error: httpx.HTTPStatusError) -> str:
    """Return the server's own words, which it sends as JSON, or the status where it sends none."""
    try:
        detail = error.response.json()
    except ValueError:
        return f"status {error.response.status_code}"
    if isinstance(detail, dict):
        detail = detail.get("detail") or detail.get("exception_detail") or detail
    return " ".join(str(detail).split())
