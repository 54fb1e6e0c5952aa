"""`RolloutDataset`: a dataset version as a torch dataset, for trainers that bring their own loop."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from torch.utils.data import IterableDataset, get_worker_info

from rollmill.errors import InputError
from rollmill.storage.assemble import Padding
from rollmill.storage.file_cache import DEFAULT_MAX_CACHE_BYTES
from rollmill.storage.file_source import FileSource
from rollmill.storage.minibatches import Cursor, MinibatchReader
from rollmill.storage.reading import Reading
from rollmill.storage.results import RolloutResult
from rollmill.storage.store import RolloutStore


class RolloutDataset(IterableDataset[RolloutResult]):
    """Iterates over one dataset version, each group once an epoch, in minibatches of `prompts_per_batch` groups.

        loader = DataLoader(RolloutDataset(store), batch_size=None, num_workers=2)

    The version is chosen here, the newest unless `version` names another, and stays; so all workers of a DataLoader,
    and each new iteration, read the same. An iteration gives `num_epochs` epochs, or never ends for None, beginning
    with the epoch that `set_epoch` has set; each epoch has an order of its own. Workers count as further ranks: the
    minibatches of all workers of all ranks together hold each group once. All other arguments are those of
    `CachedRolloutRunner`. Raises ObjectMissingError when there is no such version, InputError for a bad setting.
    """

    def __init__(
        self,
        store: RolloutStore,
        prompts_per_batch: int = 8,
        *,
        version: int | None = None,
        window: int = 1,
        num_epochs: int | None = 1,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        cache_dir: str | os.PathLike[str] | None = None,
        max_cache_bytes: int = DEFAULT_MAX_CACHE_BYTES,
        pad_id: int = 0,
        prompt_side: str = "left",
        response_side: str = "right",
        accept_logprob_mode: str | Sequence[str] = "processed",
        null_rewards: str = "require_full",
        min_k: int | None = None,
        drop_last: bool = False,
        further_columns: Sequence[str] = (),
    ) -> None:
        if num_epochs is not None and num_epochs < 1:
            raise InputError(f"num_epochs must be at least 1, got {num_epochs}")
        self._reading = Reading(
            prompts_per_batch=prompts_per_batch,
            rank=rank,
            world_size=world_size,
            seed=seed,
            drop_last=drop_last,
            accept_logprob_mode=accept_logprob_mode,
            null_rewards=null_rewards,
            min_k=min_k,
            further_columns=tuple(further_columns),
            padding=Padding(pad_id=pad_id, prompt_side=prompt_side, response_side=response_side),
        )
        self._num_epochs = num_epochs
        self._epoch = 0
        self._source = FileSource(store.objects, cache_dir, max_cache_bytes)
        self._version = store.latest() if version is None else store.version(version)
        self._entries = self._version.runs(window)

    @property
    def version(self) -> int:
        """The number of the version that is read."""
        return self._version.number

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with this epoch's order."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[RolloutResult]:
        worker = get_worker_info()
        share, shares = (0, 1) if worker is None else (worker.id, worker.num_workers)
        reader = MinibatchReader(self._source, self._entries, self._reading.split(share, shares))
        for minibatch in reader.read(Cursor(self._epoch), self._num_epochs):
            if minibatch.result.num_groups:
                yield minibatch.result
