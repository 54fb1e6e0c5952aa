"""Minibatches of whole groups, in an order that any rank of any number of ranks can take up at any place."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from rollmill.errors import InputError
from rollmill.storage.assemble import pad_groups
from rollmill.storage.concurrency import made_ahead
from rollmill.storage.file_source import FileSource
from rollmill.storage.group_table import GroupTable, decode_groups
from rollmill.storage.log import DatasetFile, LogEntry
from rollmill.storage.order import MAX_BLOCK_BYTES, Block, epoch_order
from rollmill.storage.reading import Reading
from rollmill.storage.results import RolloutResult

_MAX_BYTES_AHEAD = 3 * MAX_BLOCK_BYTES // 2
"""Files of at most as many bytes, but at least one, are decoded while the groups before them are taken."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the endless row of epochs: all ranks together have taken `position` groups of epoch `epoch`.

    Groups that are left out count as taken. It means the same for every rank and number of ranks.
    """

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One rank's groups of one step, and where the next step begins."""

    result: RolloutResult
    after: Cursor


class MinibatchReader:
    """Reads the files of some runs, newest run first, as minibatches.

    In each step the ranks take `prompts_per_batch` groups each, one slice after the other, of one order that all of
    them know. The last step of an epoch deals what is left as evenly as it goes, so the ranks always take equally many
    steps; where fewer groups are left than there are ranks, some get a result without groups. No step reaches over
    the end of an epoch, so no group is in one step twice.
    """

    def __init__(self, source: FileSource, entries: Sequence[LogEntry], reading: Reading) -> None:
        self.entries = tuple(entries)
        self._source = source
        self._reading = reading
        self._group_size = _one_group_size(entries)
        self._files = [file for entry in entries for file in entry.files if file.rows]
        self._num_groups = [file.rows // self._group_size for file in self._files]
        self._mode: str | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """The log entries that are read."""
        return tuple(entry.number for entry in self.entries)

    @property
    def files(self) -> list[DatasetFile]:
        return self._files

    def read(self, cursor: Cursor, num_epochs: int | None = None) -> Generator[Minibatch, None, None]:
        """Yield this rank's minibatches from `cursor` on, for so many epochs or endlessly.

        Raises InputError when no group may be used or the logprob_mode is not accepted, and ObjectMissingError or
        CorruptDataError, naming the file, when the store does not have what was committed.
        """
        epochs = count(cursor.epoch) if num_epochs is None else range(cursor.epoch, cursor.epoch + num_epochs)
        for epoch in epochs:
            num_steps = 0
            for minibatch in self._read_epoch(epoch, cursor.position):
                num_steps += 1
                yield minibatch
                del minibatch
            if cursor.position == 0 and num_steps == 0:
                raise InputError(self._nothing_to_read())
            cursor = Cursor(epoch + 1)

    def _read_epoch(self, epoch: int, position: int) -> Generator[Minibatch, None, None]:
        key = [self._reading.seed, *self.numbers, epoch]
        order = epoch_order(self._num_groups, [file.bytes for file in self._files], key)
        blocks = [block for block in order if block.start + len(block.groups) > position]
        waiting = _Waiting()
        per_step = self._reading.prompts_per_step
        files = [self._files[file] for block in blocks for file in block.files]
        decoded = made_ahead(self._decode, files, lambda file: file.bytes, _MAX_BYTES_AHEAD, self._source.max_at_once)
        try:
            for block in blocks:
                self._add(waiting, block, GroupTable.joined(list(islice(decoded, len(block.files)))), position)
                while len(waiting) >= per_step:
                    groups, position_after = waiting.take(per_step)
                    is_last = position_after == sum(self._num_groups)
                    yield self._minibatch(groups, Cursor(epoch + 1) if is_last else Cursor(epoch, position_after))
            if len(waiting) and not self._reading.drop_last:
                groups, _ = waiting.take(len(waiting))
                yield self._minibatch(groups, Cursor(epoch + 1))
        finally:
            decoded.close()

    def _add(self, waiting: _Waiting, block: Block, table: GroupTable, position: int) -> None:
        skipped = max(position - block.start, 0)
        groups = block.groups[skipped:]
        needed = self._reading.rewards_needed(self._group_size)
        usable = np.flatnonzero(table.num_scored()[groups] >= needed)
        waiting.add(table, groups[usable], block.start + skipped + usable)

    def _minibatch(self, groups: list[tuple[GroupTable, NDArray[np.int64]]], after: Cursor) -> Minibatch:
        share = self._reading.share(sum(len(numbers) for _, numbers in groups))
        result = pad_groups(
            _sliced(groups, share),
            self._group_size,
            policy_version=self.entries[0].policy_version,
            logprob_mode=self._mode or "",
            padding=self._reading.padding,
        )
        return Minibatch(result, after)

    def _decode(self, file: DatasetFile) -> GroupTable:
        where = self._source.where(file)
        table, mode = decode_groups(
            self._source.read(file), file, where, self._group_size, self._reading.further_columns
        )
        self._reading.check_mode(mode, where)
        if self._mode not in (None, mode):
            raise InputError(f"{where} has logprob_mode {mode!r}, other files {self._mode!r}; read them apart")
        self._mode = mode
        return table

    def _nothing_to_read(self) -> str:
        what = f"versions {', '.join(map(str, self.numbers))} of {self._source.objects.url}"
        if self._reading.drop_last:
            return f"{what} have fewer usable groups than the {self._reading.prompts_per_step} of one step"
        return f"{what} have no group that null_rewards={self._reading.null_rewards!r} lets through"


class _Waiting:
    """Usable groups that are decoded and not dealt yet, in order, with their places in the epoch."""

    def __init__(self) -> None:
        self._parts: list[tuple[GroupTable, NDArray[np.int64], NDArray[np.int64]]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, table: GroupTable, groups: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        if len(groups):
            self._parts.append((table, groups, places))
            self._length += len(groups)

    def take(self, number: int) -> tuple[list[tuple[GroupTable, NDArray[np.int64]]], int]:
        """Return the first `number` groups, and the place after the last of them."""
        taken: list[tuple[GroupTable, NDArray[np.int64]]] = []
        self._length -= number
        place = 0
        while number:
            table, groups, places = self._parts.pop(0)
            taken.append((table, groups[:number]))
            place = int(places[min(number, len(places)) - 1]) + 1
            if len(groups) > number:
                self._parts.insert(0, (table, groups[number:], places[number:]))
            number -= min(number, len(groups))
        return taken, place


def _sliced(
    groups: Sequence[tuple[GroupTable, NDArray[np.int64]]], wanted: slice
) -> list[tuple[GroupTable, NDArray[np.int64]]]:
    """Return a slice of the groups of several tables, counted through."""
    chosen, start = [], 0
    for table, numbers in groups:
        part = numbers[max(wanted.start - start, 0) : max(wanted.stop - start, 0)]
        if len(part):
            chosen.append((table, part))
        start += len(numbers)
    return chosen


def _one_group_size(entries: Sequence[LogEntry]) -> int:
    sizes = {entry.group_size for entry in entries}
    if len(sizes) > 1:
        named = ", ".join(f"run {entry.run_id} has {entry.group_size}" for entry in entries)
        raise InputError(f"runs of different group sizes cannot be mixed: {named}; use a smaller window")
    return sizes.pop()
