"""Runs every compiled kernel on fixed states, and prints a checksum of all that they gave."""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import torch
from torch import Tensor

from rollmill.tasks.generation.row_threads import as_array, run_on_rows

ROWS = 40
generator = torch.Generator().manual_seed(0)


def states(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(ROWS, *shape, generator=generator).to(dtype)


def run(name: str, *tensors: Tensor | np.float32) -> None:
    run_on_rows(name, ROWS, tuple(each if isinstance(each, np.float32) else as_array(each) for each in tensors))


def outputs(dtype: torch.dtype) -> list[Tensor]:
    query, keys, values = (states(2, *shape, dtype=dtype) for shape in ((2, 16), (64, 16), (64, 16)))
    new_keys, new_values = states(2, 16, dtype=dtype), states(2, 16, dtype=dtype)
    prompts = [states(2, 24, 16, dtype=dtype) for _ in range(2)]
    attended, order = torch.empty_like(query), torch.arange(ROWS)
    run(
        "attend_part",
        query,
        new_keys,
        new_values,
        keys,
        values,
        order + 1,
        np.float32(0.25),
        order,
        order // 8,
        *prompts,
        order % 25,
        attended,
    )
    normed, gated = states(64, dtype=dtype), torch.empty(ROWS, 96, dtype=dtype)
    run("norm_part", states(64, dtype=dtype), torch.ones(64), np.float32(1e-5), normed)
    run("gate_part", states(192, dtype=dtype), gated)
    rotated = [torch.empty(ROWS, heads, 16, dtype=dtype) for heads in (4, 2, 2)]
    run("rotate_part", states(128, dtype=dtype), states(16, dtype=dtype), states(16, dtype=dtype), *rotated)
    drawn = [torch.empty(ROWS, dtype=kind) for kind in (torch.int64, torch.float32, torch.bool)]
    numbers = torch.rand(ROWS, generator=generator, dtype=torch.float64)
    run("draw_part", states(700, dtype=dtype), numbers, torch.ones(ROWS), *drawn)
    return [attended, normed, gated, *rotated, *drawn]


if __name__ == "__main__":
    made = [*outputs(torch.float32), *outputs(torch.bfloat16)]
    bits = b"".join(each.view(torch.uint8).numpy().tobytes() for each in made)
    sys.stdout.write(hashlib.sha256(bits).hexdigest())
