"""`CachedRolloutRunner`: a trainer's reader of a store, which follows the newest published rollouts."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import ProcessGroup

from rollmill.errors import InputError, StaleRolloutsError
from rollmill.storage.agreement import Agreement
from rollmill.storage.assemble import Padding
from rollmill.storage.file_cache import DEFAULT_MAX_CACHE_BYTES
from rollmill.storage.file_source import FileSource
from rollmill.storage.log import LogEntry
from rollmill.storage.minibatches import Cursor, Minibatch, MinibatchReader
from rollmill.storage.newest import Freshness, RunFinder, entries_of
from rollmill.storage.pins import pin
from rollmill.storage.preparation import Preparation, Stream
from rollmill.storage.reading import Reading
from rollmill.storage.refresh import RefreshInterval
from rollmill.storage.results import RolloutResult
from rollmill.storage.store import RolloutStore

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_PINNED = 24 * 3600.0


class CachedRolloutRunner:
    """Gives minibatches of stored rollouts, and every `rollout_interval` steps goes over to newer ones.

        runner = CachedRolloutRunner(RolloutStore("s3://bucket/rollouts"), rollout_interval=64)
        for _ in range(num_steps):
            result, is_fresh = runner()
            loss(result).backward()
            optimizer.step()
            runner.step()

    A call returns `prompts_per_batch` whole groups on `device`, and True with the first of newly published rollouts.
    The runs that are read stay the same until the interval ends: epoch after epoch, each in another order. The last
    minibatch of an epoch may be smaller (see `drop_last`), and a rank may get none of its groups, never two ranks the
    same. `step` does no I/O. In the second half of an interval a thread looks for newer rollouts and fetches them.

    store, rollout_interval, prompts_per_batch, seed: as they say
    max_staleness, on_stale, window: see `Freshness`; the trainer says where it is by `policy_version`, or in `step`.
        `wait` also waits for the first publish, for up to `seconds_to_wait`, then raises StaleRolloutsError.
    rank, world_size: this process's share. With several ranks and torch.distributed initialised, rank 0 looks for
        new rollouts and tells the others (in `process_group`, by default all processes), so all ranks must call the
        runner, `step` and `policy_version` alike. Otherwise each rank looks for itself.
    cache_dir, max_cache_bytes: where copies of a store's files are kept, see `FileSource`
    pad_id, prompt_side, response_side: padding; masks come from lengths
    accept_logprob_mode, null_rewards, min_k, drop_last, further_columns: see `Reading`
    consumer: a name under which the store is told, at every refresh, which version is in use, so that `vacuum` keeps it

    Raises InputError for a setting out of bounds. A call raises ObjectMissingError when nothing is published, and
    ObjectMissingError or CorruptDataError, naming the file, for damaged data; the next call tries the same again.
    May be pickled, and used after a fork, where it goes on from the same place.
    """

    def __init__(
        self,
        store: RolloutStore,
        rollout_interval: int = 512,
        prompts_per_batch: int = 8,
        max_staleness: int | None = None,
        on_stale: str = "wait",
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        device: torch.device | str = "cpu",
        window: int = 1,
        pad_id: int = 0,
        prompt_side: str = "left",
        response_side: str = "right",
        accept_logprob_mode: str | Sequence[str] = "processed",
        null_rewards: str = "require_full",
        min_k: int | None = None,
        drop_last: bool = False,
        further_columns: Sequence[str] = (),
        policy_version: int | None = None,
        seconds_to_wait: float = 600.0,
        max_cache_bytes: int = DEFAULT_MAX_CACHE_BYTES,
        process_group: ProcessGroup | None = None,
        consumer: str | None = None,
    ) -> None:
        self.policy_version = policy_version
        self._store = store
        self._device = torch.device(device)
        self._interval = RefreshInterval(rollout_interval)
        self._freshness = Freshness(window=window, max_staleness=max_staleness, on_stale=on_stale)
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
        self._source = FileSource(store.objects, cache_dir, max_cache_bytes)
        self._finder = RunFinder(store, self._freshness)
        self._seconds_to_wait = seconds_to_wait
        self._process_group = process_group
        self._consumer = consumer
        self._reader: MinibatchReader | None = None
        self._cursor = Cursor()
        self._is_fresh = False
        self._restored: list[int] = []
        self._process = os.getpid()
        self._stream: Stream | None = None
        self._preparation: Preparation | None = None

    def __call__(self) -> tuple[RolloutResult, bool]:
        """Return the next minibatch, and whether it is the first of newly published rollouts."""
        self._notice_fork()
        if self._restored:
            self._restore()
        if self._reader is None or self._interval.is_due or self._has_gone_stale(self._reader):
            self._refresh()
        minibatch = self._next_minibatch()
        self._cursor = minibatch.after
        is_fresh, self._is_fresh = self._is_fresh, False
        result = minibatch.result
        return (result if self._device.type == "cpu" else result.to(self._device)), is_fresh

    def step(self, policy_version: int | None = None) -> None:
        """Count one optimizer step, after which the trainer is at `policy_version` if one is given."""
        self._interval.step()
        if policy_version is not None:
            self.policy_version = policy_version
        if self._interval.is_halfway and not self._interval.is_due:
            self._look_ahead()

    def clear_cache(self) -> None:
        """Forget the rollouts that are being read, so that the next call looks for newer ones and begins anew.

        The files on the local disk stay, for they are checked when they are read.
        """
        self._close()
        self._reader, self._restored, self._cursor = None, [], Cursor()
        self._interval.expire()

    def state_dict(self) -> dict[str, Any]:
        """Return what a runner needs to go on exactly here, on any rank of any number of ranks, as JSON values."""
        return {
            "interval": self._interval.state_dict(),
            "versions": list(self._reader.numbers) if self._reader else self._restored,
            "epoch": self._cursor.epoch,
            "position": self._cursor.position,
            "is_fresh": self._is_fresh,
            "seed": self._reading.seed,
            "policy_version": self.policy_version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state` was taken. Raises InputError when that was with another seed."""
        if state["seed"] != self._reading.seed:
            raise InputError(
                f"the state is of a runner with seed {state['seed']}, this one has seed {self._reading.seed}; the "
                "order depends on it, so give both the same"
            )
        self._close()
        self._reader, self._restored = None, list(state["versions"])
        self._interval.load_state_dict(state["interval"])
        self._cursor = Cursor(state["epoch"], state["position"])
        self._is_fresh = state["is_fresh"]
        self.policy_version = state["policy_version"]

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the threads, which begin again where they are needed."""
        return {**self.__dict__, "_stream": None, "_preparation": None}

    def _refresh(self) -> None:
        """Find the runs to read, the same on all ranks, and go over to them where they are not read already."""
        entries = self._agreed_entries()
        self._interval.renew()
        numbers = tuple(entry.number for entry in entries)
        if self._reader is None or self._reader.numbers != numbers:
            prepared = self._preparation.take(entries) if self._preparation else None
            self._close()
            self._stream = prepared
            self._reader = prepared.reader if prepared else MinibatchReader(self._source, entries, self._reading)
            self._cursor, self._is_fresh = Cursor(), True
        if self._consumer is not None and self._reading.rank == 0:
            pin(self._store.objects, self._consumer, numbers[0], _SECONDS_PINNED, oldest=min(numbers))

    def _agreed_entries(self) -> list[LogEntry]:
        agreement = Agreement.among(self._reading.world_size, self._process_group)
        deadline = time.monotonic() + self._seconds_to_wait
        waits = False
        while True:
            entries = agreement.on(lambda: self._look(deadline))
            if entries:
                return entries
            if agreement.is_leader and not waits:
                logger.warning("%s; waiting for newer ones", self._finder.too_old(self.policy_version))
            waits = True
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _look(self, deadline: float) -> list[LogEntry]:
        entries = self._finder.find(self.policy_version)
        if not entries and time.monotonic() >= deadline:
            reason = self._finder.too_old(self.policy_version)
            raise StaleRolloutsError(f"{reason}; nothing newer came in {self._seconds_to_wait:g} seconds")
        return entries

    def _has_gone_stale(self, reader: MinibatchReader) -> bool:
        stale = [self._freshness.is_stale(entry, self.policy_version) for entry in reader.entries]
        return any(stale) and self._freshness.on_stale != "reuse"

    def _look_ahead(self) -> None:
        if self._reader is None:
            return
        if self._preparation is not None and self._preparation.found_nothing:
            self._preparation.close()
            self._preparation = None
        if self._preparation is None:
            self._preparation = Preparation(
                self._finder.copy(), self.policy_version, self._source, self._reading, self._reader.numbers
            )

    def _next_minibatch(self) -> Minibatch:
        assert self._reader is not None
        if self._stream is None:
            self._stream = Stream(self._source, self._reader, self._cursor)
        try:
            return self._stream.next()
        except BaseException:
            self._close()  # what is lost is read again from the same place
            raise

    def _restore(self) -> None:
        entries = entries_of(self._store, self._restored)
        self._reader, self._restored = MinibatchReader(self._source, entries, self._reading), []

    def _close(self) -> None:
        for threads in (self._stream, self._preparation):
            if threads is not None:
                threads.close()
        self._stream, self._preparation = None, None

    def _notice_fork(self) -> None:
        if self._process != os.getpid():
            self._stream, self._preparation, self._process = None, None, os.getpid()
