"""An engine as an actor of a Ray cluster: what runs inside, how it is started, and how messages travel.

The actor's own methods only move messages. It is not detached, so Ray ends it when the process that started it ends,
however that happens.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollmill.errors import InputError
from rollmill.tasks.generation.engine_environment import engine_environment, openmp_environment
from rollmill.tasks.generation.engine_messages import EngineSpec, Failed, LogLine, Message, Work
from rollmill.tasks.generation.engine_server import serve

_CALLS_AT_ONCE = 3  # one waits for messages, one brings work, one says where
_CAUSE = re.compile(r"The actor is dead because (.+?)(?:\.\s|\.?$)", re.MULTILINE)


class RayEngine:
    """The actor: an engine in a thread, its messages in two queues."""

    def __init__(self, spec: EngineSpec) -> None:
        os.environ.update(openmp_environment())  # before anything loads torch
        self._inbox: queue.Queue[Work] = queue.Queue()
        self._outbox: queue.Queue[Message | None] = queue.Queue()
        threading.Thread(target=self._run, args=(spec,), daemon=True, name="rollmill-engine").start()

    def where(self) -> tuple[str, str, int]:
        """Return the node's address, its id, and this process's id."""
        import ray

        return ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id(), os.getpid()

    def send(self, work: Work) -> None:
        """Take work."""
        self._inbox.put(work)

    def receive(self) -> list[Message]:
        """Wait for messages and return all there are; raises EOFError when the engine has ended and told everything."""
        messages = [self._outbox.get()]
        while not self._outbox.empty():
            messages.append(self._outbox.get())
        told = [message for message in messages if message is not None]
        if not told:
            raise EOFError("the engine inside the actor has ended")
        if len(told) < len(messages):
            self._outbox.put(None)
        return told

    def _run(self, spec: EngineSpec) -> None:
        try:
            here = replace(spec, device=_device(spec.device))
            os.environ.update(engine_environment(here))
            serve(here, self._inbox, self._outbox.put)
        except InputError as error:
            self._outbox.put(Failed(message=str(error), is_input_error=True))
        finally:
            self._outbox.put(None)


def _device(devices: str) -> str:
    from rollmill.tasks.generation.devices import engine_devices  # torch comes with it

    return engine_devices(devices)[0]


class EngineActor:
    """The parent's handle on an actor with an engine in it."""

    def __init__(self, spec: EngineSpec, options: Mapping[str, Any]) -> None:
        import ray

        actor = ray.remote(**options, max_restarts=0, max_task_retries=0, max_concurrency=_CALLS_AT_ONCE)(RayEngine)
        self._actor = actor.remote(spec)
        self._where: tuple[str, str, int] | None = None
        self._messages: deque[Message] = deque()
        self._end = ""

    @property
    def name(self) -> str:
        """What log lines and errors call it."""
        if self._where is None:
            return "engine that has no node yet"
        address, node, pid = self._where
        return f"engine on {address} (node {node[:8]}, pid {pid})"

    @property
    def pid(self) -> int | None:
        """The process id on its node."""
        return None if self._where is None else self._where[2]

    @property
    def is_placed(self) -> bool:
        """Whether a node has taken it."""
        return self._where is not None

    def send(self, work: Work) -> None:
        """Send work; that the actor is gone shows in `receive`."""
        self._actor.send.remote(work)

    def receive(self) -> Message:
        """Wait for the next message, the first of which says that a node has taken the actor.

        Raises EOFError when the actor has ended or its node cannot be reached.
        """
        import ray

        try:
            if self._where is None:
                self._where = ray.get(self._actor.where.remote())
                return LogLine(level=logging.INFO, text="started")
            while not self._messages:
                self._messages.extend(ray.get(self._actor.receive.remote()))
        except ray.exceptions.RayError as error:
            self._end = cause_of_death(str(error))
            raise EOFError(self._end) from error
        return self._told(self._messages.popleft())

    def _told(self, message: Message) -> Message:
        """Say which node found fault with the job, for another may have other files."""
        if isinstance(message, Failed) and message.is_input_error:
            return replace(message, message=f"{self.name}: {message.message}")
        return message

    def kill(self) -> None:
        """End the actor at once, or let it never begin."""
        import ray

        ray.kill(self._actor)

    def ending(self) -> str:
        """Return how the actor ended, having given back what it held of the cluster."""
        self.kill()
        return f"ended: {self._end}"


def cause_of_death(text: str) -> str:
    """Return the part of one of Ray's long messages that says why an actor died."""
    found = _CAUSE.search(text)
    return found[1] if found else " ".join(text.strip().splitlines()[-1].split())
