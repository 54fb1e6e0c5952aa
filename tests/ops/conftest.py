"""A Prefect server that tests may kill, a policy, prompts, and a reward that takes its time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import save_policy
from flow_builders import write_prompts
from interrupted_runs import Rows, rows_of, slow_job, write_slow_rewards
from prefect_stack import PrefectStack, prefect_stack

from rollmill.flows.job import RolloutJob
from rollmill.flows.rollout import rollout
from rollmill.storage.store import RolloutStore


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectStack]:
    with prefect_stack(tmp_path_factory.mktemp("ops") / "prefect") as running:
        yield running


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", 24)


@pytest.fixture
def slow_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a reward that takes a second a shard, so that there is a middle to be interrupted in."""
    folder = write_slow_rewards(tmp_path / "modules", 1)
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture(scope="session")
def _rows() -> Rows:
    """What `rows` returns, once somebody has asked."""
    return {}


@pytest.fixture
def rows(
    _rows: Rows, stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Rows:  # fmt: skip
    """The rows of a slow job that nothing disturbed."""
    if not _rows:
        store = tmp_path_factory.mktemp("undisturbed") / "store"
        rollout(RolloutJob.model_validate(slow_job(policy, prompts, str(store), num_shards=1)))
        _rows.update(rows_of(RolloutStore(store)))
    return _rows
