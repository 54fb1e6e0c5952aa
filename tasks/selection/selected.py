"""What a selection leaves, and where every other row went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """A table made of `num_kept` of `num_input` rows; `dropped` is the number of the others by reason, none of it 0.

    The table has one row per kept row, but for pairs, where several rows are in one, or one in several. Raises
    ValueError when the numbers do not add up.
    """

    table: pa.Table
    num_input: int
    num_kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_kept + sum(self.dropped.values()) != self.num_input:
            raise ValueError(f"{self.num_kept} rows kept and {dict(self.dropped)} dropped are not {self.num_input}")

    @classmethod
    def all_of(cls, table: pa.Table) -> Selected:
        """Return every row."""
        return cls(table=table, num_input=table.num_rows, num_kept=table.num_rows)

    def then(self, step: Callable[[pa.Table], Selected]) -> Selected:
        """Return what `step` leaves of this table, with the reasons of both; this table has one row per kept row."""
        following = step(self.table)
        return Selected(
            table=following.table,
            num_input=self.num_input,
            num_kept=following.num_kept,
            dropped=added(self.dropped, following.dropped),
        )

    def with_table(self, table: pa.Table) -> Selected:
        """Return the same rows with other columns."""
        return replace(self, table=table)


def keep(table: pa.Table, kept: Any, reason: str) -> Selected:
    """Return the rows where `kept`, booleans without nulls, is true; the others count under `reason`."""
    return keep_unless(table, [(reason, ~np.asarray(kept, dtype=bool))])


def keep_unless(table: pa.Table, faults: Sequence[tuple[str, NDArray[np.bool_]]]) -> Selected:
    """Return the rows without a fault; each of the others counts under the first of its faults."""
    kept = np.ones(table.num_rows, dtype=bool)
    dropped: dict[str, int] = {}
    for reason, faulty in faults:
        first = kept & np.asarray(faulty, dtype=bool)
        kept &= ~first
        dropped = added(dropped, {reason: int(first.sum())})
    rows = table if kept.all() else table.filter(pa.array(kept))
    return Selected(table=rows, num_input=table.num_rows, num_kept=rows.num_rows, dropped=dropped)


def added(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """Return both counts added up, without zeros; reasons stay in the order in which they first come."""
    names = dict.fromkeys([*first, *second])
    totals = {name: first.get(name, 0) + second.get(name, 0) for name in names}
    return {name: total for name, total in totals.items() if total}
