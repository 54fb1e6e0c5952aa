"""Nodes of a real Ray cluster on this machine, and the actors on them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import psutil

SMALL = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
"""What every node starts with, for many of them share this machine."""


class RayNodes:
    """The nodes of the cluster that a test added, beside its head."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._nodes: list[Any] = []

    @property
    def address(self) -> str:
        """host:port of the head."""
        return str(self._cluster.address)

    def add(self, **resources: Any) -> Any:
        """Start a node with room for one engine, or with what is said."""
        node = self._cluster.add_node(**{"num_cpus": 1, "num_gpus": 1, **SMALL, **resources})
        self._nodes.append(node)
        return node

    def end(self, node: Any, number: signal.Signals = signal.SIGKILL) -> None:
        """End a node's processes by SIGKILL, or by SIGTERM and, a second later, SIGKILL where that is not enough."""
        self._nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=number == signal.SIGTERM)

    def remove_all(self) -> None:
        """End the nodes that are left."""
        for node in self._nodes:
            self._cluster.remove_node(node)
        self._nodes.clear()
        self._cluster.wait_for_nodes()  # until the head has noticed


def engine_actors(node: Any = None) -> list[psutil.Process]:
    """Return the processes of this machine's engine actors, or of a node's alone."""
    parent = psutil.Process(None if node is None else node.all_processes["raylet"][0].process.pid)
    return [child for child in parent.children(recursive=True) if _title(child).startswith("ray::RayEngine")]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def is_running(process: psutil.Process) -> bool:
    """Say whether a process is alive, and no zombie."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for something that happens in another process."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)
