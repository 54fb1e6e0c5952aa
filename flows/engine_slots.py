"""Slots of a global concurrency limit, which runs on all machines share: one for each engine of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.concurrency.sync import concurrency
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound

from rollmill.errors import JobError

_SECONDS_LEASED = 300.0


@contextmanager
def engine_slots(limit: str | None, num_engines: int) -> Iterator[None]:
    """Hold a slot for each engine while the block lasts, and wait for them first. Without a limit nothing is asked for.

    The slots are leased: those of a run that dies come back by themselves. A server that is away for longer than a
    lease costs the slots and not the run. Raises JobError for a limit that is not there, or can never give so many.
    """
    if limit is None:
        yield
        return
    check_limit(limit, num_engines)
    get_run_logger().info("waiting for %d slots of the concurrency limit %s", num_engines, limit)
    with ExitStack() as held:
        held.enter_context(
            concurrency(
                limit,
                num_engines,
                lease_duration=_SECONDS_LEASED,
                strict=True,
                holder=_holder(),
                raise_on_lease_renewal_failure=False,
            )
        )
        try:
            yield
        finally:
            _give_back(held, limit)


def _holder() -> ConcurrencyLeaseHolder:
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    return ConcurrencyLeaseHolder(type="flow_run", id=context.flow_run.id)


def _give_back(held: ExitStack, limit: str) -> None:
    try:
        held.close()
    except httpx.HTTPError as error:
        get_run_logger().warning("the slots of %s come back when their lease ends: %s", limit, error)


def check_limit(limit: str, num_engines: int) -> None:
    """Raise JobError when the Prefect server has no such limit, or one with fewer slots than there are engines."""
    try:
        with get_client(sync_client=True) as client:
            slots = client.read_global_concurrency_limit_by_name(limit).limit
    except ObjectNotFound as error:
        raise JobError(
            f"engine.concurrency_limit: the Prefect server has no concurrency limit {limit}; rollmill deploy makes it"
        ) from error
    if slots < num_engines:
        raise JobError(
            f"engine.concurrency_limit: {limit} has {slots} slots, and this run has {num_engines} engines, which would "
            "wait for ever: name fewer engine.devices, or raise the limit"
        )
