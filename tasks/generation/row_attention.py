"""Each row's attention to its own tokens on a CPU: one pass over just the keys that the row has.

A matrix product does it badly: a row shares its own keys with no other row, so few queries meet each key, and a product
would pad all rows to the longest. The pass is compiled by numba at its first call (some seconds, once for a machine
where the code's folder or the user's cache can be written). Every row is computed by the same instructions in the same
order, whatever else is in the batch. Sums are float32, whatever the keys are stored in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

_MAX_THREADS = 8


def can_attend_rows(states: Tensor) -> bool:
    """Say whether `attend_rows` takes states of this dtype on this device."""
    return states.device.type == "cpu" and states.dtype in (torch.float32, torch.bfloat16)


def attend_rows(
    query: Tensor,  # (rows, kv_heads, queries, dim)
    keys: Tensor,  # (slots, kv_heads, room, dim), contiguous, of query's dtype
    values: Tensor,
    lengths: Tensor,  # (rows,) int64, how many own keys each row has, at least 1
    scale: float,
    shared: Tensor,  # (lanes, kv_heads, queries, dim) what attention to the keys that rows share came to
    shared_lse: Tensor,  # (lanes, kv_heads, queries) float64, the log-sum-exp of those scores
    row_to_lane: Tensor,  # (rows,) int64
) -> Tensor:
    """Return softmax attention over each row's shared and own keys: (rows, kv_heads, queries, dim) float32."""
    output = torch.empty(query.shape, dtype=torch.float32)
    stored = (_as_array(tensor.contiguous()) for tensor in (query, keys, values))
    lanes = (shared.float().contiguous().numpy(), shared_lse.contiguous().numpy(), row_to_lane.numpy())
    _in_threads(query.shape[0], (*stored, lengths.numpy(), np.float32(scale), *lanes, output.numpy()))
    return output


def _as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    bits = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor  # numpy has no bfloat16
    return cast("np.ndarray[Any, Any]", bits.numpy())


def _in_threads(rows: int, arguments: tuple[Any, ...]) -> None:
    parts = max(1, min(_num_threads(), rows))
    bounds = [rows * part // parts for part in range(parts + 1)]
    attend_part = _kernel()
    others = [_threads().submit(attend_part, *arguments, *bounds[part : part + 2]) for part in range(1, parts)]
    attend_part(*arguments, *bounds[:2])
    for other in others:
        other.result()


def _num_threads() -> int:
    """Return how many threads pay: one beside OpenMP's that spin for milliseconds before they leave their core."""
    leaves = "GOMP_SPINCOUNT" in os.environ or os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    return min(_MAX_THREADS, torch.get_num_threads()) if leaves else 1


@cache
def _kernel() -> Callable[..., None]:
    from rollmill.tasks.generation.row_kernels import attend_part  # imports numba

    return attend_part


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="row-attention")
