"""What Prefect is told when a version is published: an event with its figures, and that its store has new data.

The store's log is what counts. Events are only queued here, so a server that does not answer holds nothing up.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import httpx
from prefect import get_run_logger
from prefect.assets import Asset
from prefect.client.orchestration import get_client
from prefect.context import AssetContext
from prefect.events import emit_event
from prefect.events.filters import EventFilter, EventIDFilter
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from rollmill.storage.version import DatasetVersion
from rollmill.tasks.figures import Figures
from rollmill.tasks.usage import Usage

PUBLISHED = "rollmill.version.published"
"""The event of a version that readers see from now on."""

_MATERIALIZED = "prefect.asset.materialization.succeeded"
_STAYS_NEWS_FOR = timedelta(days=1)
_CLOCK_STEP = timedelta(milliseconds=1)  # of the log's times
_SECONDS_TO_ASK = 5.0
_NOT_IN_ASSET_KEYS = re.compile(r"[\s\0#?&%\"'<>\[\]{}|\\^`]")
_MAX_ASSET_KEY = 512


def tell_published(version: DatasetVersion, figures: Figures, used: Usage, since: datetime) -> None:
    """Emit the event of a version, and that its store was materialised, unless Prefect knows of it.

    `since` is when the publish began: a version that was there before is told of only if its event never arrived,
    because whoever published it was killed, and not at all once it is a day old.
    """
    event_id = event_id_of(version)
    if not _is_news(datetime.fromisoformat(version.created_at), since, event_id):
        return
    payload = payload_of(version, figures, used)
    emit_event(PUBLISHED, resource_of(version), payload=payload, id=event_id)
    asset = AssetContext.asset_as_resource(asset_of(version))
    emit_event(_MATERIALIZED, asset, payload=payload, id=uuid5(event_id, "asset"))


def event_id_of(version: DatasetVersion) -> UUID:
    """Return the id of the version's event: the same for all who tell of it, so that a server keeps one."""
    return uuid5(NAMESPACE_URL, f"{PUBLISHED} {version.objects.url} {version.number} {version.entry.operation_id}")


def resource_of(version: DatasetVersion) -> dict[str, str]:
    """Return what the event is about; automations can match any of these labels."""
    return {
        "prefect.resource.id": f"rollmill.version.{version.objects.url}.{version.number}",
        "prefect.resource.name": f"version {version.number} of {version.objects.url}",
        "rollmill.store": version.objects.url,
        "rollmill.version": str(version.number),
        "rollmill.run-id": version.run_id,
        "rollmill.policy-version": str(version.policy_version),
        "rollmill.complete": str(version.entry.complete).lower(),
    }


def payload_of(version: DatasetVersion, figures: Figures, used: Usage) -> dict[str, Any]:
    """Return the version's figures as JSON values; `complete` is false while more of the run is to come.

    What generating took is null then, and for answers that were scored again.
    """
    return {
        "store": version.objects.url,
        "version": version.number,
        "run_id": version.run_id,
        "policy_version": version.policy_version,
        "complete": version.entry.complete,
        "shards": len(version.files),
        "rows": version.num_rows,
        "groups": version.num_groups,
        "mean_reward": figures.mean_reward,
        "failed_rows": figures.failed,
        "unscored_rows": figures.unscored,
        "response_tokens": figures.response_tokens,
        **used.to_json(),
    }


def asset_of(version: DatasetVersion) -> Asset:
    """Return the store as an asset; characters that Prefect allows in no key become dashes."""
    url = address_of(version.objects.url)
    return Asset(key=_NOT_IN_ASSET_KEYS.sub("-", url)[:_MAX_ASSET_KEY])


def address_of(url: str) -> str:
    """Return the address of a store, or of something in it, with a protocol in front."""
    return url if "://" in url else f"file://{url}"


def _is_news(published_at: datetime, since: datetime, event_id: UUID) -> bool:
    if published_at >= since - _CLOCK_STEP:
        return True
    return datetime.now(UTC) - published_at < _STAYS_NEWS_FOR and _is_unheard(event_id)


def _is_unheard(event_id: UUID) -> bool:
    """Ask the server whether it lacks an event. One that does not answer would not take it either."""
    patience = {PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: _SECONDS_TO_ASK}
    try:
        with temporary_settings(patience), get_client(sync_client=True) as client:
            return not client.read_events(EventFilter(id=EventIDFilter(id=[event_id])), limit=1).events
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("Prefect's server does not say whether it knows of the version: %s", error)
        return False
