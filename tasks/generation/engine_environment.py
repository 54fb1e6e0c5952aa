"""The variables that an engine's process starts with, beside those that are there."""

from __future__ import annotations

import os

from rollmill.tasks.generation.backend import VLLM
from rollmill.tasks.generation.engine_messages import EngineSpec
from rollmill.tasks.generation.vllm_environment import vllm_environment

_SPIN_COUNT, _WAIT_POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"


def openmp_environment() -> dict[str, str]:
    """Return how OpenMP's threads wait for each other, unless the user has decided.

    They spin for some microseconds, then sleep. By default they spin for a hundred times longer, and where anything
    else wants the cores (here: the flow, its scorers and its server), that keeps the very thread that they wait for
    from running; and to sleep at once costs the short products of a small model up to half of their speed.
    """
    return {} if {_SPIN_COUNT, _WAIT_POLICY} & os.environ.keys() else {_SPIN_COUNT: "3000"}


def engine_environment(spec: EngineSpec) -> dict[str, str]:
    """Return all that an engine needs of its environment before its libraries are loaded."""
    backend = vllm_environment(spec.device, spec.num_threads) if spec.backend == VLLM else {}
    return {**openmp_environment(), **backend}
