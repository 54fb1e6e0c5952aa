"""Fixtures that tests of every room may use."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import hypothesis
import pytest
import torch
from seaweedfs import BUCKET, S3Place, S3Server, running_seaweedfs

hypothesis.settings.register_profile("shared", deadline=None)  # the machine may be shared
hypothesis.settings.load_profile("shared")
torch.set_num_threads(1)  # the models are tiny, and the machine may be shared


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A SeaweedFS with one bucket; it ends with the session."""
    with running_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server) -> S3Place:
    """An empty prefix of the test bucket, for this test alone."""
    key, secret = s3_server.writer
    return S3Place(f"s3://{BUCKET}/{uuid.uuid4().hex}", s3_server.endpoint_url, key, secret)


@pytest.fixture(scope="session")
def prefect() -> Iterator[None]:
    """A Prefect server of its own, with an empty database; it ends with the session."""
    from prefect.testing.utilities import prefect_test_harness  # a second to import, which other tests need not wait

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DO_NOT_TRACK", "1")
        environment.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
        with prefect_test_harness(server_startup_timeout=120):
            yield
