"""rollmill: workflow-orchestrated batch rollout jobs for reinforcement learning of language models.

The public names below are loaded when first used, so that importing one room does not load the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollmill.storage.results import RawRollout, RolloutResult
    from rollmill.tasks.generation.types import Completion, SamplingParams

_HOMES = {
    "Completion": "rollmill.tasks.generation.types",
    "RawRollout": "rollmill.storage.results",
    "RolloutResult": "rollmill.storage.results",
    "SamplingParams": "rollmill.tasks.generation.types",
}

__all__ = ["Completion", "RawRollout", "RolloutResult", "SamplingParams"]


def __getattr__(name: str) -> object:
    """Load a public name from its room, once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rollmill' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
