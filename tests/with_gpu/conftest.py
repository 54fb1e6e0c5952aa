"""What needs a GPU, skipped where there is none; `make test-gpu` runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="there is no GPU here: run make test-gpu where there is one"))


@pytest.fixture(scope="session", autouse=True)
def _prefect(prefect: None) -> None:
    """Jobs run on the session's server."""
