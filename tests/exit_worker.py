"""Reads a store in one process after the other, each of which ends in the middle, and prints the status of each.

Every process is a fork that goes through the interpreter's whole end; what it writes to stderr is in a file of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from itertools import islice
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from rollmill import CachedRolloutRunner, RolloutStore
from rollmill.storage.ahead import Ahead
from rollmill.storage.dataset import RolloutDataset


def runner(store: RolloutStore) -> object:
    reading = CachedRolloutRunner(store, prompts_per_batch=16)
    reading()
    return reading


def lost_runner(store: RolloutStore) -> None:
    runner(store)


def preparing_runner(store: RolloutStore) -> object:
    """Read the older version, and leave while a thread looks for the newer one, fetches it and begins to read it."""
    reading = CachedRolloutRunner(store, rollout_interval=2, prompts_per_batch=16)
    reading.load_state_dict({**reading.state_dict(), "versions": [1]})
    reading()
    reading.step()
    return reading


def dataset(store: RolloutStore) -> object:
    minibatches = iter(RolloutDataset(store, 16))
    next(minibatches)
    return minibatches


def loader(store: RolloutStore) -> object:
    minibatches = iter(DataLoader(RolloutDataset(store, 16), batch_size=None, num_workers=2))
    list(islice(minibatches, 2))
    return minibatches


def busy_thread(store: RolloutStore) -> object:
    """Leave while a thread is in a tensor operation, which is where an interpreter that ends would abort."""

    def multiplied() -> Generator[float, None, None]:
        while True:
            yield float(torch.randn(400, 400).mm(torch.randn(400, 400))[0, 0])

    ahead = Ahead(multiplied(), 10**6)
    next(ahead)
    return ahead


READERS: tuple[Callable[[RolloutStore], object], ...] = (
    runner, lost_runner, preparing_runner, dataset, loader, busy_thread
)  # fmt: skip
STATUSES = {"return": 0, "exit": 3, "raise": 1}
NUM_WAYS = len(READERS) * len(STATUSES)


def way(number: int) -> tuple[Callable[[RolloutStore], object], str]:
    """Return how the process of that number reads, and how it ends; as many as NUM_WAYS differ."""
    return READERS[number % len(READERS)], list(STATUSES)[number // len(READERS) % len(STATUSES)]


def end(how: str) -> None:
    if how == "exit":
        sys.exit(STATUSES[how])
    if how == "raise":
        raise ValueError("in the middle")


if __name__ == "__main__":
    folder, times = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    for number in range(times):
        child = os.fork()
        if child == 0:
            os.dup2(os.open(folder / f"{number}.err", os.O_CREAT | os.O_WRONLY), 2)
            read, how = way(number)
            kept = read(RolloutStore(folder / "store"))
            end(how)
            break
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()
