"""Engines as actors of a Ray cluster, which finds a node for each."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rollmill.errors import GenerationError
from rollmill.tasks.generation.config import EngineConfig, PolicyConfig
from rollmill.tasks.generation.local_places import engine_spec
from rollmill.tasks.generation.policies import policy_fingerprint
from rollmill.tasks.generation.ray_cluster import connected, num_engines
from rollmill.tasks.generation.ray_engine import EngineActor
from rollmill.tasks.generation.runner_config import RayRunner


class RayPlaces:
    """The room that a job asks a Ray cluster for; this process is a driver of the cluster until `close`."""

    def __init__(self, policy: PolicyConfig, engine: EngineConfig, runner: RayRunner) -> None:
        spec = engine_spec(policy, engine, engine.devices, max(1, int(runner.num_cpus)))
        self._spec = replace(
            spec,
            model=_anywhere(policy.model),
            fingerprint=policy_fingerprint(policy.model),
            gpu_share=runner.num_gpus or 1.0,
        )
        self._runner = runner
        self._options = {
            "num_gpus": runner.num_gpus,
            "num_cpus": runner.num_cpus,
            "resources": runner.resources,
            "scheduling_strategy": "SPREAD",
        }
        with ExitStack() as connection:
            connection.enter_context(connected(runner.address))
            self._num_engines = num_engines(runner)
            self._connection = connection.pop_all()

    @property
    def num_places(self) -> int:
        """How many engines the job asks for, whether or not the cluster has room for all of them now."""
        return self._num_engines

    def start(self, place: int) -> EngineActor:  # noqa: ARG002  (all places are alike)
        """Ask the cluster for an engine; it may take any time to find a node."""
        return EngineActor(self._spec, self._options)

    def give_up(self, seconds_waited: float) -> None:
        """Raise GenerationError when work has waited too long while no engine had a node."""
        if seconds_waited > self._runner.seconds_to_place:
            needs = " and ".join(f"{amount:g} {name}" for name, amount in self._runner.needs.items())
            raise GenerationError(
                f"no node of the Ray cluster had {needs} free for an engine within "
                f"{self._runner.seconds_to_place:g} s; `ray status` shows what is free and what is asked for"
            )

    def close(self) -> None:
        """Be a driver of the cluster no longer."""
        self._connection.close()


def _anywhere(model: str) -> str:
    """Return a policy's name as processes with another working folder understand it."""
    folder = Path(model).expanduser()
    return str(folder.resolve()) if folder.is_dir() else model
