"""The child side: builds one reward from its configuration and rates with it until the parent goes away."""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rollmill.errors import RollmillError
from rollmill.tasks.rewards.isolation.frames import FrameSocket
from rollmill.tasks.rewards.item import Group, Item, Outcome, describe
from rollmill.tasks.rewards.rating import BatchRater, ItemRater, Outcomes

EXIT_OUT_OF_MEMORY = 86
_PR_SET_PDEATHSIG = 1

Value = TypeVar("Value")
Argument = TypeVar("Argument")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """All that a worker needs to know: the reward's configuration, where modules are, and its limits."""

    config: dict[str, Any]
    sys_path: list[str]
    folder: str
    memory_bytes: int | None

    def to_json(self) -> str:
        """Return the spec as text that `from_json` reads."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str | bytes) -> WorkerSpec:
        """Return the spec that `to_json` wrote."""
        return cls(**json.loads(text))


def run_worker(connection: socket.socket, spec: WorkerSpec) -> None:
    """Serve one parent; ends when it closes the connection."""
    _leave_the_parents_group()
    frames = FrameSocket(connection)
    try:
        sys.path[:] = spec.sys_path
        os.chdir(spec.folder)
        _limit_memory(spec.memory_bytes)
        rater = _build(spec.config)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything
        frames.send(json.dumps(str(error) if isinstance(error, RollmillError) else describe(error)).encode())
        return
    frames.send(b"null")
    while True:
        try:
            request = frames.receive()
        except EOFError:
            return
        _serve(frames, rater, pickle.loads(request))


def _serve(frames: FrameSocket, rater: ItemRater | BatchRater, request: list[Item] | list[Group]) -> None:
    if isinstance(rater, ItemRater):
        alone = ItemRater(_ending_without_memory(rater.judge))
        for item in request:
            assert isinstance(item, Item)
            frames.send(encode(alone.rate_item(item)))
        return
    groups: list[Group] = [group for group in request if not isinstance(group, Item)]
    try:
        rate: Callable[[Sequence[Group]], Outcomes] = _ending_without_memory(rater.rate_batch)
        answer: Any = [[_plain(outcome) for outcome in group] for group in rate(groups)]
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
        answer = str(error) if isinstance(error, RollmillError) else describe(error)
    frames.send(json.dumps(answer).encode())


def encode(outcome: Outcome) -> bytes:
    """Return an outcome as bytes that `decode` reads."""
    return json.dumps(_plain(outcome)).encode()


def decode(payload: bytes) -> Outcome:
    """Return the outcome that `encode` wrote."""
    return outcome_of_plain(json.loads(payload))


def outcome_of_plain(plain: list[Any]) -> Outcome:
    """Return the outcome that was made plain for JSON."""
    value, reason, parts = plain
    return Outcome(value=value, reason=reason, parts=parts)


def _plain(outcome: Outcome) -> list[Any]:
    return [outcome.value, outcome.reason, dict(outcome.parts)]


def _build(config: dict[str, Any]) -> ItemRater | BatchRater:
    from rollmill.tasks.rewards.build_plain import plain_config, plain_rater

    rater = plain_rater(plain_config(config))
    assert isinstance(rater, (ItemRater, BatchRater))
    return rater


def _ending_without_memory(call: Callable[[Argument], Value]) -> Callable[[Argument], Value]:
    """Return `call`, ending the process when memory runs out: what was leaked is only given back that way."""

    def guarded(argument: Argument) -> Value:
        try:
            return call(argument)
        except MemoryError:
            os._exit(EXIT_OUT_OF_MEMORY)

    return guarded


def _leave_the_parents_group() -> None:
    """Be a process group of one's own, so that killing it also ends what a reward has started, and end with the server.

    Only Linux can tie a process to its parent's life; elsewhere a busy worker ends when it next looks for work.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit_memory(memory_bytes: int | None) -> None:
    if memory_bytes is None or sys.platform != "linux":
        return
    pages = int(Path("/proc/self/statm").read_text().split()[5])  # data and stack, which RLIMIT_DATA counts
    limit = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
