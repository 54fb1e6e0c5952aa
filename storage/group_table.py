"""Decoded rows, group after group, as results are cut from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollmill.errors import CorruptDataError, InputError
from rollmill.storage.parquet import REMEDY, CommittedFile
from rollmill.storage.ragged import Ragged, numpy_of
from rollmill.storage.schema import RESULT_COLUMNS

_LIST_COLUMNS = ("prompt_token_ids", "response_token_ids", "logprobs")
KEPT_COUNTS, KEPT_IDS = "kept_counts", "kept_ids"
"""The lists that the column kept_token_ids becomes: how many ids each token was drawn from, and these ids."""

RESPONSE_TEXT = "response_text"
"""The text that is different in each row; it becomes strings only where it is asked for, for it may be long."""

_REPEATED_COLUMNS = ("run_id", "prompt_id", "prompt_text", "finish_reason", "metadata")
"""Text that repeats within a group, or everywhere; it is decoded once for each different value."""


@dataclass(frozen=True, slots=True)
class GroupTable:
    """Whole groups of `group_size` rows each: group g is `order[g]`, the numbers of its rows with the samples in order.

    By name, `lists` holds the token ids, the logprobs, the response's text and what FURTHER_COLUMNS the rows have,
    `texts` the other columns of text, `numbers` policy_version and reward, which is NaN where it is null.
    """

    lists: dict[str, Ragged]
    texts: dict[str, NDArray[np.object_]]
    numbers: dict[str, NDArray[Any]]
    order: NDArray[np.int64]  # (groups, group_size)

    @classmethod
    def of(cls, rows: pa.Table) -> GroupTable:
        """Find the groups of `rows` (RESULT_COLUMNS), in the order in which they first appear.

        Raises CorruptDataError when they are not all of one size, with samples 0 to G - 1 exactly once.
        """
        lists = {name: Ragged.of(rows[name]) for name in _LIST_COLUMNS}
        if not np.array_equal(lists["response_token_ids"].lengths(), lists["logprobs"].lengths()):
            raise CorruptDataError("token ids and logprobs of a row differ in number")
        lists[RESPONSE_TEXT] = Ragged.of_texts(rows[RESPONSE_TEXT])
        lists.update(_further(rows))
        numbers = {name: _numbers(rows[name]) for name in ("policy_version", "reward")}
        return cls(lists, {name: _texts(rows[name]) for name in _REPEATED_COLUMNS}, numbers, _group_order(rows))

    @classmethod
    def joined(cls, tables: Sequence[GroupTable]) -> GroupTable:
        """Return the groups of one table after those of the other; all have the same group size."""
        if len(tables) == 1:
            return tables[0]
        first = tables[0]
        starts = np.cumsum([0, *(len(table.numbers["reward"]) for table in tables)])
        return cls(
            {name: Ragged.joined([table.lists[name] for table in tables]) for name in first.lists},
            {name: np.concatenate([table.texts[name] for table in tables]) for name in first.texts},
            {name: np.concatenate([table.numbers[name] for table in tables]) for name in first.numbers},
            np.concatenate([table.order + start for table, start in zip(tables, starts[:-1], strict=True)]),
        )

    @property
    def num_groups(self) -> int:
        return int(self.order.shape[0])

    @property
    def group_size(self) -> int:
        return int(self.order.shape[1])

    def num_scored(self) -> NDArray[np.int64]:
        """Return how many rewards of each group are there, [groups]."""
        scored: NDArray[np.int64] = (~np.isnan(self.numbers["reward"]))[self.order].sum(axis=1)
        return scored


def decode_groups(
    data: bytes, file: CommittedFile, where: str, group_size: int, further: Sequence[str] = ()
) -> tuple[GroupTable, str]:
    """Return a committed response file's groups, with these FURTHER_COLUMNS, and its logprob_mode.

    Raises InputError when its job did not store a further column, and CorruptDataError, naming `where`, when the file
    is not what was committed, or its groups are not whole or of another size. It decodes in the calling thread alone,
    for a thread of Arrow's own may let go of `data` last, when Python is no longer there to be asked.
    """
    try:
        parquet = pq.ParquetFile(pa.BufferReader(data), read_dictionary=_REPEATED_COLUMNS, pre_buffer=False)
        schema = parquet.schema_arrow
        columns = [*RESULT_COLUMNS, *further]
        absent = sorted(set(columns) - set(schema.names))
        mode = (schema.metadata or {}).get(b"logprob_mode")
        if absent or mode is None:
            what = ", ".join(absent) or "logprob_mode"
            raise CorruptDataError(f"{where} has no {what}; it is not a file of responses")
        rows = parquet.read(columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise CorruptDataError(f"{where} cannot be decoded: {error}") from error
    if rows.num_rows != file.rows:
        raise CorruptDataError(f"{where} holds {rows.num_rows} rows, {file.rows} were committed; {REMEDY}")
    refuse_absent(rows, further, where)
    try:
        table = GroupTable.of(rows.replace_schema_metadata(None))
    except (CorruptDataError, pa.ArrowException) as error:
        raise CorruptDataError(f"{where}: {error}") from error
    if table.num_groups and table.group_size != group_size:
        raise CorruptDataError(f"{where} has groups of {table.group_size}, its run has groups of {group_size}")
    return table, mode.decode()


def refuse_absent(rows: pa.Table, further: Sequence[str], where: str) -> None:
    """Raise InputError when any of these FURTHER_COLUMNS is null in a row that has an answer."""
    for name in further:
        unanswered = pc.sum(pc.equal(rows["finish_reason"], "error")).as_py() or 0
        if rows[name].null_count > unanswered:
            raise InputError(f"{where} has no {name}: they are stored by jobs with sampling.{name}: true")


def _further(rows: pa.Table) -> dict[str, Ragged]:
    lists = {}
    if "full_logprobs" in rows.column_names:
        lists["full_logprobs"] = Ragged.of(rows["full_logprobs"])
    if "kept_token_ids" in rows.column_names:
        lists[KEPT_COUNTS], lists[KEPT_IDS] = Ragged.of_nested(rows["kept_token_ids"])
    return lists


def _group_order(rows: pa.Table) -> NDArray[np.int64]:
    groups = _group_numbers(rows)
    samples = _numbers(rows["sample_index"])
    order = np.lexsort((samples, groups))
    sizes = np.bincount(groups, minlength=1)
    group_size = int(sizes[0])
    wrong = samples[order] != np.arange(len(order)) % max(group_size, 1)
    if (sizes != group_size).any() or wrong.any():
        group = int(np.argmax(sizes != group_size)) if (sizes != group_size).any() else int(groups[order][wrong][0])
        row = int(np.argmax(groups == group))
        raise CorruptDataError(
            f"group {rows['run_id'][row]}/{rows['prompt_id'][row]} has {sizes[group]} rows, the first group has "
            f"{group_size}; all groups need the same samples, each once"
        )
    return order.reshape(-1, max(group_size, 1))


def _group_numbers(rows: pa.Table) -> NDArray[np.int64]:
    """Return each row's group, counted in the order in which they first appear."""
    runs, prompts = (_codes(rows[name]) for name in ("run_id", "prompt_id"))
    pairs = runs * (int(prompts.max(initial=0)) + 1) + prompts
    _, first, numbers = np.unique(pairs, return_index=True, return_inverse=True)
    ranks = np.empty(len(first), np.int64)
    ranks[np.argsort(first)] = np.arange(len(first))
    return ranks[numbers]


def _texts(column: pa.ChunkedArray) -> NDArray[np.object_]:
    values = column.combine_chunks()
    if pa.types.is_dictionary(values.type):
        different: NDArray[np.object_] = np.array(values.dictionary.to_pylist(), dtype=object)
        repeated: NDArray[np.object_] = different[numpy_of(values.indices)]
        return repeated
    return np.array(values.to_pylist(), dtype=object)


def _numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return the numbers, NaN where they are null."""
    values = column.combine_chunks()
    if not values.null_count:
        return numpy_of(values)
    known = numpy_of(values.is_valid().cast(pa.uint8())).astype(bool)
    stored = pa.Array.from_buffers(values.type, len(values), [None, values.buffers()[1]], offset=values.offset)
    return np.where(known, numpy_of(stored), np.nan)


def _codes(column: pa.ChunkedArray) -> NDArray[np.int64]:
    values = column.combine_chunks()
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    return numpy_of(encoded.indices).astype(np.int64)
