"""What a flow run shows to people in Prefect's UI.

Nothing of it decides anything, so a server that does not take it costs the sight of it and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException

from rollmill.flows.news import address_of
from rollmill.storage.layout import log_key
from rollmill.storage.version import DatasetVersion


def show_markdown(key: str, markdown: str, description: str) -> None:
    """Keep a text as an artifact of the flow run."""
    with _if_possible(key):
        create_markdown_artifact(markdown, key=key, description=description)


def show_table(key: str, table: Sequence[dict[str, Any]], description: str) -> None:
    """Keep a table as an artifact of the flow run."""
    with _if_possible(key):
        create_table_artifact(list(table), key=key, description=description)


def show_link(key: str, address: str, text: str, description: str) -> None:
    """Keep a link to a file, by its path or its URL, as an artifact of the flow run."""
    with _if_possible(key):
        create_link_artifact(address_of(address), text, key=key, description=description)


def show_version(key: str, version: DatasetVersion) -> None:
    """Keep a link to the version's entry in its store's log."""
    text = f"version {version.number} of {version.objects.url}"
    show_link(key, version.objects.where(log_key(version.number)), text, f"Published by {version.run_id}")


def show_tags(model: str, policy_version: int, prompts: str) -> None:
    """Tag the flow run in progress by its policy and its prompt dataset, in place of such tags of its deployment, whose
    job may have had another policy, and beside all others."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    found = {f"policy:{model}", f"policy-version:{policy_version}", f"dataset:{prompts}"}
    others = (tag for tag in context.flow_run.tags if not tag.startswith(("policy:", "policy-version:", "dataset:")))
    tags = sorted({*others, *found})
    with _if_possible("tags"), get_client(sync_client=True) as client:
        client.update_flow_run(context.flow_run.id, tags=tags)
        context.flow_run.tags = tags  # events that are emitted from here on name them as well


@contextmanager
def _if_possible(what: str) -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("%s is not shown in Prefect's UI: %s", what, error)
