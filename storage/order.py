"""The order in which an epoch visits the groups of a set of files: a function of numbers alone, so it needs no I/O.

Files are visited in a random order, a few at a time; within such a block the groups are in a random order. So what a
reader holds decoded is one block, and the order is the same for every number of ranks, in every process and release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_BLOCK_BYTES = 4 * 2**20
"""A block holds files of at most as many bytes together, but at least one file."""


@dataclass(frozen=True, slots=True)
class Block:
    """Files that are read together, as places in the list of files, and the order of all their groups.

    `groups` counts through the groups of the first file, then of the second, and so on; `start` is the number of
    groups in the epoch's earlier blocks.
    """

    files: tuple[int, ...]
    groups: NDArray[np.int64]
    start: int


def epoch_order(
    num_groups: Sequence[int], num_bytes: Sequence[int], key: Sequence[int], max_block_bytes: int = MAX_BLOCK_BYTES
) -> list[Block]:
    """Return the blocks of one epoch over files of so many groups and bytes; `key` (seed, epoch, …) picks the order."""
    blocks: list[Block] = []
    for files in _filled(_shuffled(len(num_groups), key), num_bytes, max_block_bytes):
        total = sum(num_groups[file] for file in files)
        start = blocks[-1].start + len(blocks[-1].groups) if blocks else 0
        blocks.append(Block(files, _shuffled(total, [*key, *files]), start))
    return blocks


def _filled(order: NDArray[np.int64], num_bytes: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    block: list[int] = []
    filled = 0
    for file in order.tolist():
        if block and filled + num_bytes[file] > most:
            yield tuple(block)
            block, filled = [], 0
        block.append(file)
        filled += num_bytes[file]
    if block:
        yield tuple(block)


def _shuffled(number: int, key: Sequence[int]) -> NDArray[np.int64]:
    """Return 0 … number - 1 in the order of their hashes."""
    state: NDArray[np.uint64] = np.zeros(1, np.uint64)
    for part in key:
        state = _mixed(state + np.uint64(part % 2**64))
    counters = np.arange(number, dtype=np.uint64)
    return np.argsort(_mixed(counters + state), kind="stable")


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64's output for each state (Steele, Lea and Flood, 2014); it is one to one."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
