"""A real Ray cluster on this machine: a head that has room for nothing, and nodes that declare GPUs without having any.

Torch sees no GPU, so engines take the CPU. `make test-ray` runs these tests.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import save_policy
from flow_builders import write_prompts
from ray_builders import SMALL, RayNodes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs Ray where there is none: pip install 'rollmill[ray]'."""
    if importlib.util.find_spec("ray") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="Ray is not installed here"))


@pytest.fixture(scope="session", autouse=True)
def _prefect(prefect: None) -> None:
    """Every flow here runs on the session's server."""


@pytest.fixture(scope="session")
def _head() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("RAY_memory_monitor_refresh_ms", "0")  # the machine may be shared
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0, **SMALL})
        try:
            yield cluster
        finally:
            cluster.shutdown()


@pytest.fixture
def nodes(_head: Any) -> Iterator[RayNodes]:
    """The cluster without any node but its head, for this test alone."""
    own = RayNodes(_head)
    try:
        yield own
    finally:
        own.remove_all()


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", num_prompts=24)
