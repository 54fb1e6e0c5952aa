"""The connection to a Ray cluster, and how many engines it has room for."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rollmill.errors import JobError
from rollmill.tasks.generation.config import EngineConfig
from rollmill.tasks.generation.quiet import one_line
from rollmill.tasks.generation.runner_config import AUTO, RayRunner

logger = logging.getLogger(__name__)

_ADDRESS_VARIABLE = "RAY_ADDRESS"
_SECONDS_TO_ANSWER = 5.0
_ROUNDING = 1e-6
_DEVICES = ("auto", "cpu", "cuda")


def check_cluster(runner: RayRunner, engine: EngineConfig) -> None:
    """Raise JobError when Ray is not installed, no cluster answers, or it has no room for what the job asks for."""
    if engine.devices not in _DEVICES:
        raise JobError(
            f"engine.devices: {engine.devices} names devices of one machine, and with runner.type ray the cluster "
            "gives each engine its own: say auto, cpu or cuda, and set runner.num_engines"
        )
    with connected(runner.address):
        num_engines(runner)


def num_engines(runner: RayRunner) -> int:
    """Return how many engines a job has on the cluster that this process is connected to.

    Raises JobError when that is for the cluster to say and it has room for none.
    """
    import ray

    if runner.num_engines is not None:
        return runner.num_engines
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(room_on(node, runner.needs) for node in nodes)
    if not room:
        raise JobError(
            f"runner: none of the {len(nodes)} nodes of the Ray cluster has {_listed(runner.needs)} for an engine; set "
            "runner.num_gpus to 0 for engines on CPUs, or runner.num_engines to wait for nodes that have it"
        )
    return room


def room_on(node: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """Return how many engines fit on a node that nothing else runs on."""
    return min(math.floor(node.get(name, 0.0) / amount + _ROUNDING) for name, amount in needs.items())


def _listed(needs: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in needs.items())


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Be a driver of a Ray cluster inside; a process that is one already stays so, of the cluster that it has.

    Ray would also take over SIGTERM, and print on standard output what becomes of its nodes; neither is left to it.
    Raises JobError when Ray is not installed or no cluster answers.
    """
    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:  # a mere folder of that name has no origin
        raise JobError(
            "runner.type: ray is not installed beside rollmill: pip install 'rollmill[ray]', or set runner.type to "
            "local"
        )
    import ray

    if ray.is_initialized():
        yield
        return
    cluster = _answering(address)
    with _printing_nothing():
        with _same_signals():
            _connect(address, cluster)
        try:
            yield
        finally:
            ray.shutdown()


def _answering(address: str) -> str:
    """Return the host and port of a cluster, once something has answered there: Ray itself would wait for minutes."""
    from ray._private.services import canonicalize_bootstrap_address

    named = os.environ.get(_ADDRESS_VARIABLE, "")
    if address == AUTO and "://" in named:
        raise JobError(
            f"runner.address: {_ADDRESS_VARIABLE} is {named}, but the flow has to run on a node of the cluster: set it "
            "to host:port of the cluster's head"
        )
    try:
        cluster = str(canonicalize_bootstrap_address(address))
        host, _, port = cluster.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _no_answer(address, error) from error
    return cluster


def _connect(address: str, cluster: str) -> None:
    import ray

    try:
        ray.init(address=cluster, log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise _no_answer(address, error) from error


def _no_answer(address: str, error: Exception) -> JobError:
    return JobError(
        f"runner.address {address}: no Ray cluster answers that this machine is a node of ({one_line(error)}); start "
        "one with `ray start --head`, join one with `ray start --address=HOST:PORT`, or set runner.type to local"
    )


@contextmanager
def _same_signals() -> Iterator[None]:
    """Put back what SIGTERM does; only the main thread can, and only there does Ray change it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _printing_nothing() -> Iterator[None]:
    """Send to the log what Ray prints on standard output, where `--json` has only the result."""
    from ray._private import worker

    printing = worker.print_to_stdstream
    worker.print_to_stdstream = _log
    try:
        yield
    finally:
        worker.print_to_stdstream = printing


def _log(data: Mapping[str, Any], ignore_prefix: bool) -> None:  # noqa: ARG001  (as Ray calls it)
    for line in data["lines"]:
        logger.info("Ray: %s", line)
