"""From dataset versions to a training set."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.errors import RunFailedError
from rollmill.storage.log import LogEntry
from rollmill.storage.objects import Objects
from rollmill.storage.store import RolloutStore
from rollmill.tasks.export.answers import choose_entries, read_answers
from rollmill.tasks.export.config import ExportConfig
from rollmill.tasks.export.manifest import (
    Contribution,
    Manifest,
    PlacedFile,
    SplitSummary,
    export_id_of,
    input_id_of,
)
from rollmill.tasks.export.place import data_path, finished, put_in_place, refuse_others
from rollmill.tasks.export.records import RECORD_SCHEMAS, REWARD_COLUMNS, columns_to_read, to_records
from rollmill.tasks.export.split import SPLITS, split_records
from rollmill.tasks.export.spool import Spool, SpooledFile
from rollmill.tasks.export.tally import ANSWERS, AnswerTally, SplitTally, histogram
from rollmill.tasks.selection.pipeline import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A training set that is in place; `is_new` is False when it was there already."""

    url: str
    manifest: Manifest
    is_new: bool


def export_training_set(
    store: RolloutStore,
    place: Objects,
    config: ExportConfig,
    *,
    versions: Sequence[int] = (),
    window: int = 1,
    overwrite: bool = False,
) -> Exported:
    """Make a training set of some dataset versions (`choose_entries`), and put it in place as a whole.

    A shard is in memory at a time, and the set itself on the local disk until it is finished. The same input gives the
    same bytes; a set that is there already is left as it is. Raises JobError when the place holds another set and
    `overwrite` is not set, StoreAccessError when the place cannot be written, and RunFailedError, with the reasons,
    when fewer than `config.min_records` records are left. Of several exports that race to a new place, the one that
    began to write first is put there, and those of other sets are refused.
    """
    entries = choose_entries(store, versions, window)
    name = store_name(store.url)
    asked = config.model_dump(mode="json", exclude={"min_records"})
    input_id = input_id_of(name, [entry.operation_id for entry in entries], asked)
    there = finished(place, input_id)
    if there is not None:
        return Exported(url=place.url, manifest=there, is_new=False)
    refuse_others(place, input_id, overwrite)
    place.check_access()
    with tempfile.TemporaryDirectory(prefix="rollmill-export-") as folder:
        making = _Making(config, Path(folder))
        for entry in entries:
            making.read(store.objects, entry)
        files = making.spool.finish()
        making.refuse_too_few(store.url)
        manifest = making.manifest(input_id, name, asked, entries, files)
        put_in_place(place, manifest, files, overwrite=overwrite)
    return Exported(url=place.url, manifest=manifest, is_new=True)


class _Making:
    """A training set on its way: what is selected, spooled and counted so far."""

    def __init__(self, config: ExportConfig, folder: Path) -> None:
        self.config = config
        self.spool = Spool(folder, RECORD_SCHEMAS[config.format])
        self.tally = AnswerTally()
        self.splits = {split: SplitTally(REWARD_COLUMNS[config.format]) for split in SPLITS}
        self.facts: dict[int, Mapping[str, Any]] = {}
        self._selection = Selection(config.selection, config.format)

    def read(self, objects: Objects, entry: LogEntry) -> None:
        """Select from every shard of a run."""
        config = self.config
        told = config.format != "table"
        for answers in read_answers(objects, entry, columns_to_read(config.format), conversations=told):
            self.facts.setdefault(entry.number, answers.facts)
            selected = self._selection.select(answers.table, answers.conversations)
            self.tally.add(entry.number, answers.table, selected)
            records = to_records(selected.table, config.format)
            for split, part in split_records(records, config.test_fraction, config.split_seed).items():
                self.spool.add(split, part)
                self.splits[split].add(part)

    def refuse_too_few(self, url: str) -> None:
        total = self.tally.total
        if total.records < self.config.min_records:
            why = ", ".join(f"{number} {reason}" for reason, number in total.in_order().items())
            raise RunFailedError(
                f"{total.records} {self.config.format} records are left of {total.rows} rows of {url}, at least "
                f"{self.config.min_records} are wanted; nothing was written. Dropped: {why or 'none'}"
            )

    def manifest(
        self,
        input_id: str,
        store: str,
        asked: Mapping[str, Any],
        entries: Sequence[LogEntry],
        files: Sequence[SpooledFile],
    ) -> Manifest:
        """Return what the finished set says of itself."""
        total = self.tally.total
        export_id = export_id_of(input_id, [file.sha256 for file in files])
        return Manifest(
            input_id=input_id,
            export_id=export_id,
            format=self.config.format,
            store=store,
            config=asked,
            sources=tuple(self._contribution(entry) for entry in entries),
            rows=total.rows,
            kept=total.kept,
            records=total.records,
            dropped=total.in_order(),
            mean_reward=self.tally.rewards.mean(),
            histogram=histogram({ANSWERS: self.tally.rewards.all(), **self._rewards()}),
            splits={split: self._summary(split, export_id, files) for split in SPLITS if self.splits[split].records},
        )

    def _contribution(self, entry: LogEntry) -> Contribution:
        rows = self.tally.by_version.get(entry.number)
        return Contribution(
            version=entry.number,
            run_id=entry.run_id,
            stage=entry.stage,
            policy_version=entry.policy_version,
            operation_id=entry.operation_id,
            created_at=entry.created_at,
            complete=entry.complete,
            rows=rows.rows if rows else 0,
            kept=rows.kept if rows else 0,
            records=rows.records if rows else 0,
            facts=self.facts.get(entry.number, {}),
        )

    def _rewards(self) -> dict[str, NDArray[np.float64]]:
        """Return all rewards of each column of the records."""
        names = REWARD_COLUMNS[self.config.format]
        return {name: np.concatenate([split.rewards[name].all() for split in self.splits.values()]) for name in names}

    def _summary(self, split: str, export_id: str, files: Sequence[SpooledFile]) -> SplitSummary:
        tally = self.splits[split]
        placed = tuple(
            PlacedFile(path=data_path(export_id, file.name), rows=file.rows, bytes=file.bytes, sha256=file.sha256)
            for file in files
            if file.split == split
        )
        mean = {name: rewards.mean() for name, rewards in tally.rewards.items()}
        return SplitSummary(records=tally.records, prompts=tally.prompts, mean=mean, files=placed)


def store_name(url: str) -> str:
    """Return how a set names its store: the address, but of a local folder only its name, which is nobody's affair."""
    return url if "://" in url else Path(url).name
