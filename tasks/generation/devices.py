"""Which devices a job's engines run on."""

from __future__ import annotations

import os

import torch

from rollmill.errors import JobError


def engine_devices(devices: str) -> list[str]:
    """Return one torch device per engine process for auto, cpu, cpu:N (N processes), cuda or cuda:0,1.

    Raises JobError when a GPU is asked for that is not there. Only counts GPUs: it starts no CUDA context.
    """
    num_gpus = torch.cuda.device_count()
    kind, _, numbers = devices.partition(":")
    if kind == "auto":
        return [f"cuda:{index}" for index in range(num_gpus)] or ["cpu"]
    if kind == "cpu":
        return ["cpu"] * int(numbers or 1)
    indices = [int(number) for number in numbers.split(",")] if numbers else list(range(num_gpus))
    missing = [index for index in indices if index >= num_gpus]
    if missing or not indices:
        raise JobError(f"engine.devices: {devices} asks for a GPU that is not there; this machine has {num_gpus}")
    return [f"cuda:{index}" for index in indices]


def threads_per_engine(num_engines: int) -> int:
    """Return each engine's share of the CPU cores that this process may use."""
    return max(1, len(os.sched_getaffinity(0)) // num_engines if hasattr(os, "sched_getaffinity") else 1)
