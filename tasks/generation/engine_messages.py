"""What an engine is told when it starts, and what it and its parent tell each other, however the messages travel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rollmill.tasks.generation.types import FinishedGroup, PromptGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """All that an engine needs to know to load its policy.

    `device` is a torch device, or auto, cpu or cuda for an engine that learns only in its place what there is. Of a
    GPU, the engine has the part `gpu_share`. With a `fingerprint`, the policy's files must have it.
    """

    model: str
    dtype: str
    device: str
    gpu_share: float
    num_threads: int
    max_batch_size: int
    max_seq_len: int | None
    backend: str
    memory_share: float | None
    fingerprint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Parent to engine: answer these groups."""

    work_id: int
    groups: tuple[PromptGroup, ...]

    @property
    def num_rows(self) -> int:
        """How many answers are asked for."""
        return sum(len(group.seeds) for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Engine to parent: the policy is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Engine to parent: rows finished and tokens sampled since the last such message."""

    num_rows: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Engine to parent: the answers to one `Work`, in the order of its groups.

    `seconds` is its part of the time in which the engine sampled: works that were in progress at once share it. They
    were seconds of the torch device `device`, of which the engine has `gpu_share` where that is a GPU.
    """

    work_id: int
    groups: tuple[FinishedGroup, ...]
    seconds: float
    device: str
    gpu_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """Engine to parent: what the engine has to say; `level` is one of the logging module's."""

    level: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Engine to parent: the engine cannot go on. `is_input_error` says that trying again would not help."""

    message: str
    is_input_error: bool


Message = Ready | Progress | Done | LogLine | Failed

Send = Callable[[Message], None]
"""Sends a message from an engine to its parent."""
