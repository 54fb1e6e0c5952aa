"""Engines as processes of this machine, one for each device of the job."""

from __future__ import annotations

from rollmill.tasks.generation.config import EngineConfig, PolicyConfig
from rollmill.tasks.generation.devices import engine_devices, threads_per_engine
from rollmill.tasks.generation.engine_messages import EngineSpec
from rollmill.tasks.generation.engine_process import EngineProcess


class LocalPlaces:
    """The devices of this machine that a job names; there is nothing to wait for and nothing to give back."""

    def __init__(self, policy: PolicyConfig, engine: EngineConfig) -> None:
        devices = engine_devices(engine.devices)
        self._specs = [engine_spec(policy, engine, device, threads_per_engine(len(devices))) for device in devices]

    @property
    def num_places(self) -> int:
        """How many devices there are."""
        return len(self._specs)

    def start(self, place: int) -> EngineProcess:
        """Spawn the engine process of a device."""
        return EngineProcess(self._specs[place])

    def give_up(self, seconds_waited: float) -> None:
        """Do nothing: a process has its machine from the start."""

    def close(self) -> None:
        """Do nothing: the processes were killed."""


def engine_spec(policy: PolicyConfig, engine: EngineConfig, device: str, num_threads: int) -> EngineSpec:
    """Return what an engine on a device needs to know of its job."""
    return EngineSpec(
        model=policy.model,
        dtype=policy.dtype,
        device=device,
        gpu_share=1.0,
        num_threads=num_threads,
        max_batch_size=engine.max_batch_size,
        max_seq_len=engine.max_seq_len,
        backend=engine.backend,
        memory_share=engine.memory_share,
        fingerprint=None,
    )
