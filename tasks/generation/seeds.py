"""Counter-based random numbers: every draw is a pure function of who is drawing and at which position.

A row's seed hashes (job seed, prompt_id, sample_index); its number at a position mixes seed and position with
splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). No state is kept,
so answers depend neither on what else is in the batch, nor on sharding, retries or the number of workers.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def row_seed(job_seed: int, prompt_id: str, sample_index: int) -> int:
    """Return the 64-bit seed of one response."""
    text = f"{job_seed}\x00{sample_index}\x00{prompt_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return one number in [0, 1) for each (seed, position); both arrays have shape (rows,)."""
    with np.errstate(over="ignore"):
        state = _mix(seeds) + (positions + np.uint64(1)) * _GOLDEN_GAMMA
        bits = _mix(state)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))
