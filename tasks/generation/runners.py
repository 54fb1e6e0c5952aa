"""From the sections `runner` and `engine` of a job to the places of its engines."""

from __future__ import annotations

from rollmill.tasks.generation.config import EngineConfig, PolicyConfig
from rollmill.tasks.generation.devices import engine_devices
from rollmill.tasks.generation.local_places import LocalPlaces
from rollmill.tasks.generation.ray_cluster import check_cluster
from rollmill.tasks.generation.ray_places import RayPlaces
from rollmill.tasks.generation.runner_config import LocalRunner, RayRunner


def check_runner(runner: LocalRunner | RayRunner, engine: EngineConfig) -> None:
    """Raise JobError when the devices, or the cluster, that a job asks for are not there. Starts nothing."""
    if isinstance(runner, RayRunner):
        check_cluster(runner, engine)
    else:
        engine_devices(engine.devices)


def engine_places(
    policy: PolicyConfig, engine: EngineConfig, runner: LocalRunner | RayRunner
) -> LocalPlaces | RayPlaces:
    """Return where the engines of a job run. Raises JobError as `check_runner` does."""
    return RayPlaces(policy, engine, runner) if isinstance(runner, RayRunner) else LocalPlaces(policy, engine)
