"""Batches of neighbouring shards: cut, named, and waited for until every one has ended, well or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from prefect.futures import PrefectFuture

from rollmill.errors import InputError, RunFailedError
from rollmill.flows.gate import Gate
from rollmill.storage.plan import ShardRange
from rollmill.tasks.shards import ShardRef

_MAX_FAILURES_IN_A_ROW = 3

Pair = tuple[str, PrefectFuture[list[ShardRef]] | None, PrefectFuture[list[ShardRef]]]


def batched(shards: Sequence[ShardRange], max_batches: int) -> Iterator[tuple[ShardRange, ...]]:
    """Cut shards into at most so many runs of neighbours of one length, single ones where they are few enough."""
    size = max(1, math.ceil(len(shards) / max_batches))
    return (tuple(shards[begin : begin + size]) for begin in range(0, len(shards), size))


def shards_name(batch: Sequence[ShardRange]) -> str:
    """Return what a task run of neighbouring shards is called."""
    first, last = batch[0].index, batch[-1].index
    return f"shard-{first:05d}" if first == last else f"shards-{first:05d}-{last:05d}"


@dataclass(slots=True)
class Outcome:
    """What became of the batches: finished shards, and the error of each batch that failed."""

    finished: list[ShardRef] = field(default_factory=list)
    failures: list[tuple[str, BaseException]] = field(default_factory=list)


def gather(pairs: Sequence[Pair], gate: Gate, on_finished: Callable[[Iterable[int]], None] | None = None) -> Outcome:
    """Wait for every batch, as they end; close the gate when trying the others is of no use.

    `on_finished` is told the indexes of the shards of each batch that was finished.
    """
    outcome = Outcome()
    failures_in_a_row = 0
    for name, generated, scored in _as_they_end(pairs):
        error = _error_of(generated) if generated else None
        error = error or _error_of(scored)
        if error is None:
            shards = scored.result()
            outcome.finished.extend(shards)
            failures_in_a_row = 0
            if on_finished is not None:
                on_finished(shard.index for shard in shards)
            continue
        outcome.failures.append((name, error))
        failures_in_a_row += 1
        if isinstance(error, InputError) or failures_in_a_row >= _MAX_FAILURES_IN_A_ROW:
            gate.close()
    return outcome


def _as_they_end(pairs: Sequence[Pair]) -> Iterator[Pair]:
    ended: SimpleQueue[Pair] = SimpleQueue()
    for pair in pairs:
        pair[2].add_done_callback(partial(_put, ended, pair))
    for _ in pairs:
        yield ended.get()


def _put(ended: SimpleQueue[Pair], pair: Pair, _: PrefectFuture[list[ShardRef]]) -> None:
    ended.put(pair)


def _error_of(future: PrefectFuture[list[ShardRef]]) -> BaseException | None:
    future.wait()
    if future.state.is_completed():
        return None
    error = future.result(raise_on_failure=False)
    assert isinstance(error, BaseException)
    return error


def refuse_failures(outcome: Outcome, run_id: str) -> None:
    """Raise what made batches fail: an InputError as it is, anything else as RunFailedError."""
    if not outcome.failures:
        return
    for _, error in outcome.failures:
        if isinstance(error, InputError):
            raise error
    name, error = outcome.failures[0]
    more = f" and {len(outcome.failures) - 1} others" if len(outcome.failures) > 1 else ""
    raise RunFailedError(
        f"run {run_id}: {name}{more} failed, first with: {error}; all other finished shards are kept, and the "
        "same command goes on with what is missing"
    ) from error
