"""Running compiled code over the rows of torch's tensors, on as many threads as pay."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

_MAX_THREADS = 8


def has_kernels(states: Tensor) -> bool:
    """Say whether `row_kernels` takes states of this dtype on this device."""
    return states.device.type == "cpu" and states.dtype in (torch.float32, torch.bfloat16)


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the tensor's memory as the kernels read it, a bfloat16 as the uint16 of its bits; copied if strided."""
    tensor = tensor.contiguous()
    bits = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor  # numpy has no bfloat16
    return cast("np.ndarray[Any, Any]", bits.numpy())


def run_on_rows(name: str, rows: int, arguments: tuple[Any, ...], least: int = 1) -> None:
    """Call the kernel of this name on all rows, split among threads of which none has fewer than `least` rows.

    Kernels take a first row and the one after the last as their last two arguments, and treat every row alone. They are
    compiled at the first call (some seconds, once for a machine where the code's folder or the user's cache can be
    written).
    """
    parts = max(1, min(_num_threads(), rows // least))
    bounds = [rows * part // parts for part in range(parts + 1)]
    kernel = getattr(_kernels(), name)
    others = [_threads().submit(kernel, *arguments, *bounds[part : part + 2]) for part in range(1, parts)]
    kernel(*arguments, *bounds[:2])
    for other in others:
        other.result()


def _num_threads() -> int:
    """Return how many threads pay: one beside OpenMP's that spin for milliseconds before they leave their core."""
    leaves = "GOMP_SPINCOUNT" in os.environ or os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    return min(_MAX_THREADS, torch.get_num_threads()) if leaves else 1


@cache
def _kernels() -> ModuleType:
    from rollmill.tasks.generation import row_kernels  # imports numba

    return row_kernels


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="row-kernels")
