"""A dataset version: an immutable list of files that readers may see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rollmill.errors import CorruptDataError, InputError
from rollmill.storage.concurrency import at_once
from rollmill.storage.layout import log_key
from rollmill.storage.log import DatasetFile, LogEntry, VersionLog
from rollmill.storage.objects import Objects
from rollmill.storage.parquet import read_committed
from rollmill.storage.retirement import retirement_of
from rollmill.storage.schema import RESULT_COLUMNS

if TYPE_CHECKING:
    from rollmill.storage.results import RolloutResult


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """One version of a store.

    It is the newest run together with the runs before it. What it says of itself, and what it reads, is of the newest
    run; `window=k` takes the k newest runs, newest first, each run once.
    """

    objects: Objects
    entry: LogEntry

    @property
    def number(self) -> int:
        """Its place in the store's log, from 1."""
        return self.entry.number

    @property
    def policy_version(self) -> int:
        """The trainer's number for the weights that answered."""
        return self.entry.policy_version

    @property
    def run_id(self) -> str:
        """The run's name within the store."""
        return self.entry.run_id

    @property
    def group_size(self) -> int:
        """G, the answers to each prompt."""
        return self.entry.group_size

    @property
    def created_at(self) -> str:
        """When it was published: UTC, ISO 8601."""
        return self.entry.created_at

    @property
    def files(self) -> tuple[DatasetFile, ...]:
        """The Parquet files, with their rows, bytes and sha256."""
        return self.entry.files

    @property
    def num_rows(self) -> int:
        """How many answers there are."""
        return sum(file.rows for file in self.entry.files)

    @property
    def num_groups(self) -> int:
        """How many prompts there are."""
        return self.num_rows // self.entry.group_size

    def runs(self, window: int = 1) -> list[LogEntry]:
        """Return the entries of the `window` newest runs, or of as many as there are, newest first.

        A window ends before the first of its earlier runs that was retired. Raises InputError for a window below 1,
        CorruptDataError when the log has a gap.
        """
        if window < 1:
            raise InputError(f"window must be at least 1, got {window}")
        chosen: dict[str, LogEntry] = {}
        for entry in self._back():
            if chosen and entry.run_id not in chosen and retirement_of(self.objects, entry.run_id):
                break
            chosen.setdefault(entry.run_id, entry)
            if len(chosen) == window:
                break
        return list(chosen.values())

    def read(self, columns: Sequence[str] | None = None, window: int = 1) -> pa.Table:
        """Return the rows, or some columns of them, in prompt order.

        The table's schema metadata holds what the files say of themselves (logprob_mode, sampling, fingerprints) as
        far as all files agree. Raises ObjectMissingError or CorruptDataError that name the file.
        """
        files = [file for entry in self.runs(window) for file in entry.files]
        tables = at_once(lambda file: read_committed(self.objects, file, columns), files)
        shared = set.intersection(*(set((table.schema.metadata or {}).items()) for table in tables))
        return pa.concat_tables([table.replace_schema_metadata(None) for table in tables]).replace_schema_metadata(
            dict(sorted(shared))
        )

    def result(
        self,
        prompt_ids: Sequence[str] | None = None,
        *,
        window: int = 1,
        pad_id: int = 0,
        prompt_side: str = "left",
        response_side: str = "right",
        further_columns: Sequence[str] = (),
    ) -> RolloutResult:
        """Return the groups as padded tensors: all, or those of `prompt_ids` in that order.

        `further_columns` names FURTHER_COLUMNS that the result shall have. Raises InputError when they were not stored
        and for a prompt id that is not there, CorruptDataError when the files disagree on the
        logprob_mode or a group is not whole.
        """
        # torch takes a second to import, and listing a store needs none
        from rollmill.storage.assemble import Padding, assemble
        from rollmill.storage.group_table import refuse_absent

        padding = Padding(pad_id=pad_id, prompt_side=prompt_side, response_side=response_side)
        rows = self.read([*RESULT_COLUMNS, *further_columns], window)
        refuse_absent(rows, further_columns, f"version {self.number} of {self.objects.url}")
        mode = (rows.schema.metadata or {}).get(b"logprob_mode")
        if mode is None:
            raise CorruptDataError(f"version {self.number} of {self.objects.url}: its files name no one logprob_mode")
        return assemble(
            rows if prompt_ids is None else self._of_prompts(rows, prompt_ids),
            policy_version=self.policy_version,
            logprob_mode=mode.decode(),
            padding=padding,
        )

    def _of_prompts(self, rows: pa.Table, prompt_ids: Sequence[str]) -> pa.Table:
        wanted = pa.array(prompt_ids, pa.string())
        places = pc.index_in(rows["prompt_id"], value_set=wanted)
        found = set(pc.unique(places).drop_null().to_pylist())
        absent = [prompt_id for place, prompt_id in enumerate(prompt_ids) if place not in found]
        if absent:
            raise InputError(f"version {self.number} of {self.objects.url} has no prompt {', '.join(absent[:5])}")
        order = pc.sort_indices(pa.table({"place": places}), sort_keys=[("place", "ascending")])
        return rows.take(order.slice(0, len(order) - places.null_count))

    def _back(self) -> Iterator[LogEntry]:
        """Yield this version's entry, then the newest entry of the run before, and so on to the first."""
        log, entry = VersionLog(self.objects), self.entry
        yield entry
        while entry.previous:
            earlier = log.read(entry.previous)
            if earlier is None:
                raise CorruptDataError(f"{self.objects.where(log_key(entry.previous))} is missing from the log")
            entry = earlier
            yield entry
