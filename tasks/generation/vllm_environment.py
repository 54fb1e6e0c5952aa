"""What vLLM and torch read from the environment of an engine process that runs vLLM."""

from __future__ import annotations

import os


def vllm_environment(device: str, num_threads: int) -> dict[str, str]:
    """Return the variables that the process must start with; `device` is cpu or cuda:N, N among the visible GPUs."""
    kind, _, index = device.partition(":")
    common = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a process of its own would outlive an engine that is killed
        "VLLM_CONFIGURE_LOGGING": "0",  # its log lines go where the engine's go
        "VLLM_NO_USAGE_STATS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    if kind == "cpu":
        # Compiling takes a minute on a CPU, needs a C++ compiler, and made nothing faster.
        return {**common, "OMP_NUM_THREADS": str(num_threads), "TORCHDYNAMO_DISABLE": "1"}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {**common, "CUDA_VISIBLE_DEVICES": visible.split(",")[int(index)] if visible else index}
