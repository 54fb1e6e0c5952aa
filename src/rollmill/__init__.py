"""rollmill: workflow-orchestrated batch rollout jobs for reinforcement learning of language models.

The public names below are loaded when first used, so that importing one room does not load the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollmill.flows.announcing import announce_policy
    from rollmill.flows.command import run_job
    from rollmill.flows.job import RolloutJob
    from rollmill.storage.cached_runner import CachedRolloutRunner
    from rollmill.storage.dataset import RolloutDataset
    from rollmill.storage.results import RawRollout, RolloutResult
    from rollmill.storage.store import RolloutStore
    from rollmill.tasks.generation.generator import RolloutGenerator
    from rollmill.tasks.generation.scheduler import InferenceScheduler
    from rollmill.tasks.generation.types import Completion, SamplingParams
    from rollmill.tasks.rewards.base import BaseRewardModel
    from rollmill.tasks.runner import RolloutRunner

_HOMES = {
    "BaseRewardModel": "rollmill.tasks.rewards.base",
    "CachedRolloutRunner": "rollmill.storage.cached_runner",
    "Completion": "rollmill.tasks.generation.types",
    "InferenceScheduler": "rollmill.tasks.generation.scheduler",
    "RawRollout": "rollmill.storage.results",
    "RolloutDataset": "rollmill.storage.dataset",
    "RolloutGenerator": "rollmill.tasks.generation.generator",
    "RolloutJob": "rollmill.flows.job",
    "RolloutResult": "rollmill.storage.results",
    "RolloutRunner": "rollmill.tasks.runner",
    "RolloutStore": "rollmill.storage.store",
    "SamplingParams": "rollmill.tasks.generation.types",
    "announce_policy": "rollmill.flows.announcing",
    "run_job": "rollmill.flows.command",
}

__all__ = [
    "BaseRewardModel",
    "CachedRolloutRunner",
    "Completion",
    "InferenceScheduler",
    "RawRollout",
    "RolloutDataset",
    "RolloutGenerator",
    "RolloutJob",
    "RolloutResult",
    "RolloutRunner",
    "RolloutStore",
    "SamplingParams",
    "announce_policy",
    "run_job",
]


def __getattr__(name: str) -> object:
    """Load a public name from its room, once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rollmill' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
