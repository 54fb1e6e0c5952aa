"""The places that storage tests run on: a local folder, memory, and a real S3 server."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from store_builders import Place


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place of every kind."""
    return _place(request, tmp_path)


@pytest.fixture(params=["local", "s3"])
def shared_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place of every kind that several processes can use."""
    return _place(request, tmp_path)


def _place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(str(tmp_path / "store"))
    if request.param == "memory":
        return Place(f"memory://{uuid.uuid4().hex}")
    s3 = request.getfixturevalue("s3")
    return Place(s3.url, s3.storage_options)
