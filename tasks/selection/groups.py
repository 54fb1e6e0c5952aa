"""Which rows are answers of one run to one prompt, and which of them are better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Groups:
    """The group of each row of a table, as a number from 0 to `count` - 1."""

    numbers: NDArray[np.int64]  # (rows,)
    count: int

    @classmethod
    def of(cls, table: pa.Table) -> Groups:
        """Find the groups: rows of the same run_id and prompt_id."""
        runs, prompts = (_codes(table[name]) for name in ("run_id", "prompt_id"))
        pairs = runs * (int(prompts.max(initial=0)) + 1) + prompts
        different, numbers = np.unique(pairs, return_inverse=True)
        return cls(numbers.astype(np.int64), len(different))

    def count_where(self, holds: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the number of rows of each group where `holds`, [groups]."""
        counts: NDArray[np.int64] = np.bincount(self.numbers[holds], minlength=self.count)
        return counts


def rewards_of(table: pa.Table) -> NDArray[np.float64]:
    """Return the rewards, [rows]; NaN where there is none."""
    rewards: NDArray[np.float64] = table["reward"].cast(pa.float64()).to_numpy()
    return rewards


def num_tokens_of(table: pa.Table) -> NDArray[np.int64]:
    """Return the number of tokens of each answer, [rows]."""
    lengths: NDArray[np.int64] = pc.list_value_length(table["response_token_ids"]).to_numpy().astype(np.int64)
    return lengths


def best_first(table: pa.Table, groups: Groups) -> NDArray[np.int64]:
    """Return the numbers of all rows, group by group, the greatest reward first.

    Of equal rewards the lower sample_index comes first; rows without a reward come last.
    """
    order: NDArray[np.int64] = np.lexsort((samples_of(table), -rewards_of(table), groups.numbers))
    return order


def worst_first(table: pa.Table, groups: Groups) -> NDArray[np.int64]:
    """Return the numbers of all rows, group by group, the least reward first; of equal ones the lower sample_index."""
    order: NDArray[np.int64] = np.lexsort((samples_of(table), rewards_of(table), groups.numbers))
    return order


def samples_of(table: pa.Table) -> NDArray[np.int64]:
    samples: NDArray[np.int64] = table["sample_index"].to_numpy().astype(np.int64)
    return samples


def places_in_groups(groups: Groups, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each row's place, from 0, within its group, where `order` lists the rows group by group; [rows]."""
    sizes = np.bincount(groups.numbers, minlength=groups.count)
    starts = np.cumsum(sizes) - sizes
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    return places


def _codes(column: Any) -> NDArray[np.int64]:
    values = column.combine_chunks()
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    codes: NDArray[np.int64] = encoded.indices.to_numpy().astype(np.int64)
    return codes
