"""A job with a middle to be interrupted in, and what its store must hold once it has ended, whatever happened."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flow_builders import job_values
from prefect.client.orchestration import get_client
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter
from prefect.events.schemas.events import ReceivedEvent
from prefect_stack import PrefectStack

from rollmill.flows.news import PUBLISHED
from rollmill.storage.layout import parse_marker_key
from rollmill.storage.schema import RESPONSE_SCHEMA
from rollmill.storage.store import RolloutStore
from rollmill.storage.verify import verify_store

Rows = dict[tuple[str, int], dict[str, Any]]

NUM_SHARDS = 12
REWARDS = [{"type": "function", "path": "slow_rewards:score"}]

_SLOW_REWARDS = """
import time


def score(prompts, completions, **columns):
    time.sleep({seconds})
    return [len(text) % 7 / 7 for text in completions]
"""


def slow_job(policy: Path, prompts: Path, store: str, num_shards: int = NUM_SHARDS, **sections: Any) -> dict[str, Any]:
    """Return a job of 24 prompts whose reward takes a second a shard."""
    shards = {"shards__prompts_per_shard": 24 // num_shards}
    return job_values(policy, prompts, store, rewards=REWARDS, **shards, **sections)


def write_slow_rewards(folder: Path, seconds: float) -> Path:
    """Make a folder with the module of `REWARDS`, whose reward takes so many seconds a shard."""
    folder.mkdir()
    (folder / "slow_rewards.py").write_text(_SLOW_REWARDS.format(seconds=seconds))
    return folder


def rows_of(store: RolloutStore) -> Rows:
    """Return every column of the latest version's rows by (prompt_id, sample_index)."""
    rows = store.latest().read(RESPONSE_SCHEMA.names).to_pylist()
    return {(row["prompt_id"], row["sample_index"]): row for row in rows}


def num_scored(store: RolloutStore) -> int:
    """Return how many shards are scored."""
    parsed = filter(None, map(parse_marker_key, store.objects.list("runs/")))
    return sum(stage.startswith("score") for _, stage, _, _ in parsed)


def told_of(store: RolloutStore) -> list[ReceivedEvent]:
    """Return the events of the store's versions that the server has."""
    resource = EventResourceFilter(id_prefix=[f"rollmill.version.{store.url}."])
    wanted = EventFilter(event=EventNameFilter(name=[PUBLISHED]), resource=resource)
    with get_client(sync_client=True) as client:
        return client.read_events(wanted, limit=50).events


def rollmill(
    stack: PrefectStack, *arguments: str, modules: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a `rollmill` command on the stack's server; its job may import what is in `modules`."""
    path = os.pathsep.join(filter(None, [str(modules or ""), *sys.path]))
    return subprocess.Popen(
        [sys.executable, "-m", "rollmill.cli", *arguments],
        env={**stack.environment, "PYTHONPATH": path, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def expect_the_rows(store: RolloutStore, rows: Rows) -> None:
    """Fail unless the store has one version, with these rows, and nothing that `verify` finds fault with."""
    assert rows_of(store) == rows
    assert verify_store(store).problems == ()
    assert len(list(store.versions())) == 1
