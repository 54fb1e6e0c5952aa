"""API keys that are kept as Prefect Secret blocks: read when a reward is built, and held by that reward alone."""

from __future__ import annotations

import contextlib

import httpx
from prefect.blocks.system import Secret
from prefect.exceptions import PrefectException

from rollmill.errors import JobError
from rollmill.flows.prefect_server import PrefectServer, prefect_server
from rollmill.tasks.rewards.service import LoadSecret


def load_secret(name: str) -> str:
    """Return the text that the Secret block `name` holds, from the Prefect server in use. Raises JobError."""
    try:
        block = Secret.load(name, _sync=True)  # type: ignore[call-arg]  # also within an async context
    except ValueError as error:
        raise JobError(
            f"there is no Prefect Secret block named {name!r}; make one under Blocks in the Prefect UI, or with "
            f"Secret(value=...).save({name!r})"
        ) from error
    except (httpx.HTTPError, PrefectException) as error:
        raise JobError(f"the Prefect Secret block {name!r} cannot be read: {error}") from error
    assert isinstance(block, Secret)
    value = block.get()
    if not isinstance(value, str) or not value:
        raise JobError(f"the Prefect Secret block {name!r} must hold a text, the API key")
    return value


def secrets_of(server: PrefectServer | None) -> LoadSecret:
    """Return `load_secret` for a command whose own server, if it has one, may still be starting."""

    def load(name: str) -> str:
        with contextlib.nullcontext() if server is None else server.in_use():
            return load_secret(name)

    return load


def load_secret_alone(name: str) -> str:
    """Return what `load_secret` does where no server is running for anything else."""
    with prefect_server() as server:
        return secrets_of(server)(name)
