"""What a job may tell fsspec of a place: anything but credentials, which Prefect would store with the job."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator

_SECRET_OPTIONS = frozenset({"key", "secret", "token", "password", "aws_access_key_id", "aws_secret_access_key"})


def _refuse_credentials(options: dict[str, Any]) -> dict[str, Any]:
    """Return `options`. Raises ValueError when they hold credentials."""
    found = sorted(_SECRET_OPTIONS.intersection(options))
    if found:
        raise ValueError(f"{', '.join(found)} would be stored with the job: put credentials into the environment")
    return options


StorageOptions = Annotated[dict[str, Any], AfterValidator(_refuse_credentials)]
"""Options of fsspec without credentials."""
