"""Checking everything that a store holds against everything that it promised."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from rollmill.errors import CorruptDataError, RollmillError, StorageError
from rollmill.storage.concurrency import at_once
from rollmill.storage.layout import (
    FORMAT_KEY,
    HEAD_KEY,
    check_format,
    log_key,
    marker_key,
    parse_log_key,
    parse_marker_key,
    plan_key,
    retired_key,
)
from rollmill.storage.ledger import LEDGER_COLUMNS, PROMPTS_STAGE, prove_rows
from rollmill.storage.log import DatasetFile, LogEntry
from rollmill.storage.parquet import CommittedFile, read_committed
from rollmill.storage.plan import Plan
from rollmill.storage.retirement import retirement_of
from rollmill.storage.rows import check_rows
from rollmill.storage.runs import RunStore, ShardMarker
from rollmill.storage.schema import PROMPT_SCHEMA, RESPONSE_SCHEMA
from rollmill.storage.store import RolloutStore


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and the key of the object where it shows."""

    what: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The problems found, none in a sound store, and how much was looked at."""

    problems: tuple[Problem, ...]
    num_versions: int
    num_runs: int
    num_markers: int
    num_files: int
    num_rows: int
    num_groups: int


def verify_store(store: RolloutStore, version: int | None = None) -> VerifyReport:
    """Check the log's chain, and for what the latest version (or `version`) reaches: every file's length, checksum,
    footer, schema and rows, and the ledger of every run; then the shards of runs that are not published. Runs that
    were retired have no files to check.

    With `version`, runs that it does not reach are left alone. Damage becomes a problem of the report.
    Raises ObjectMissingError for a version that does not exist, StoreAccessError for a store that cannot be read.
    """
    if version is not None and store.objects.size(log_key(version)) is None:
        store.version(version)
    verification = _Verification(store)
    if not verification.check_format():
        return verification.report()
    entries = [entry for entry in verification.check_log() if version is None or entry.number <= version]
    newest = {entry.run_id: entry for entry in sorted(entries, key=lambda entry: entry.number)}
    retired = {run_id for run_id in newest if verification.is_retired(run_id)}
    for run_id, entry in newest.items():
        if run_id not in retired:
            verification.check_run(entry)
    verification.check_markers(set(newest) if version is not None else None, retired)
    return verification.report()


@dataclass(slots=True)
class _Verification:
    """The problems and counts so far."""

    store: RolloutStore
    problems: list[Problem] = field(default_factory=list)
    checked: dict[str, CommittedFile] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)
    shards: set[tuple[str, str, int]] = field(default_factory=set)  # those that a version lists
    num_versions: int = 0
    num_markers: int = 0
    num_rows: int = 0
    num_groups: int = 0

    def report(self) -> VerifyReport:
        return VerifyReport(
            problems=tuple(self.problems),
            num_versions=self.num_versions,
            num_runs=len(self.runs),
            num_markers=self.num_markers,
            num_files=len(self.checked),
            num_rows=self.num_rows,
            num_groups=self.num_groups,
        )

    def check_format(self) -> bool:
        try:
            marked = check_format(self.store.objects)
        except CorruptDataError as error:
            self._add(error, FORMAT_KEY)
            return True
        if not marked:
            self.problems.append(Problem(f"there is no rollout store in {self.store.url}", FORMAT_KEY))
        return marked

    def check_log(self) -> list[LogEntry]:
        """Return the readable entries, oldest first; gaps, damage and a hint beyond the end are problems."""
        self.num_versions = max(filter(None, map(parse_log_key, self.store.objects.list("log/"))), default=0)
        entries = [entry for number in range(1, self.num_versions + 1) if (entry := self._read_entry(number))]
        if self.store.log.hint() > self.num_versions:
            self.problems.append(Problem(f"HEAD names a version after the last, {self.num_versions}", HEAD_KEY))
        operations = {entry.operation_id: entry.number for entry in reversed(entries)}
        for entry in entries:
            if operations[entry.operation_id] != entry.number:
                what = f"version {entry.number} repeats version {operations[entry.operation_id]}"
                self.problems.append(Problem(what, log_key(entry.number)))
        return entries

    def _read_entry(self, number: int) -> LogEntry | None:
        try:
            entry = self.store.log.read(number)
        except CorruptDataError as error:
            self._add(error, log_key(number))
            return None
        if entry is None:
            self.problems.append(Problem(f"version {number} is missing from the log", log_key(number)))
        return entry

    def is_retired(self, run_id: str) -> bool:
        """Whether the run's files were removed on purpose; a damaged note of that is a problem, and means no."""
        try:
            return retirement_of(self.store.objects, run_id) is not None
        except CorruptDataError as error:
            self._add(error, retired_key(run_id))
            return False

    def check_run(self, entry: LogEntry) -> None:
        """Check the files of a published run, and its ledger when all of them can be read."""
        self.runs.add(entry.run_id)
        self.shards.update((file.run_id, file.stage, file.shard) for file in entry.files)
        tables = at_once(self._check_published_file, entry.files)
        whole = [table for table in tables if table is not None]
        self.num_rows += sum(table.num_rows for table in whole)
        self.num_groups += sum(table.num_rows for table in whole) // entry.group_size
        runs = RunStore(self.store.objects, entry.run_id)
        plan = self._plan_of(runs)
        if plan is None or len(whole) < len(entry.files):
            return
        try:
            self._check_ledger(runs, plan, entry, whole)
        except StorageError as error:
            self._add(error, log_key(entry.number))

    def _check_ledger(self, runs: RunStore, plan: Plan, entry: LogEntry, tables: list[pa.Table]) -> None:
        where = f"version {entry.number}, stage {entry.stage} of run {entry.run_id}"
        if (plan.fingerprint, plan.group_size) != (entry.fingerprint, entry.group_size):
            raise CorruptDataError(f"{where} was published under another plan than the one stored")
        listed = {file.shard for file in entry.files}
        shards = [shard for shard in plan.shards if shard.index in listed]
        if [file.shard for file in entry.files] != [shard.index for shard in shards]:
            raise CorruptDataError(f"{where} does not list files of the plan's shards, in order")
        if entry.complete and len(shards) < len(plan.shards):
            raise CorruptDataError(f"{where} lists {len(shards)} of the plan's {len(plan.shards)} shards only")
        prompts = runs.markers(PROMPTS_STAGE, [shard.index for shard in shards])
        unknown = [shard.index for shard in shards if prompts and shard.index not in prompts]
        if unknown:
            raise CorruptDataError(
                f"{where}: the prompts of shards {unknown[:5]} are not committed, those of others are"
            )
        ids = {
            index: read_committed(runs.objects, marker, ["prompt_id"])["prompt_id"].to_pylist()
            for index, marker in prompts.items()
        }
        prove_rows(shards, plan.group_size, tables, ids, where)

    def _plan_of(self, runs: RunStore) -> Plan | None:
        try:
            plan = runs.load_plan()
        except CorruptDataError as error:
            self._add(error, plan_key(runs.run_id))
            return None
        if plan is None:
            self.problems.append(Problem(f"run {runs.run_id} has no plan", plan_key(runs.run_id)))
        return plan

    def _check_published_file(self, file: DatasetFile) -> pa.Table | None:
        """Return the columns that the ledger needs, or None when the file is damaged."""
        table = self._check_file(file, RESPONSE_SCHEMA)
        if table is None:
            return None
        for column, said in (("run_id", file.run_id), ("policy_version", file.policy_version)):
            values = table[column].unique().to_pylist()
            if values not in ([said], []):
                self.problems.append(Problem(f"its rows have {column} {values[:3]}, the log says {said}", file.file))
        return table.select(LEDGER_COLUMNS)

    def _check_file(self, file: CommittedFile, schema: pa.Schema) -> pa.Table | None:
        self.checked[file.file] = file
        try:
            table = read_committed(self.store.objects, file)
            if not table.schema.equals(schema):
                raise CorruptDataError(f"{self.store.objects.where(file.file)} has another schema than this format's")
            if schema is RESPONSE_SCHEMA:
                check_rows(table, self.store.objects.where(file.file))
                if b"logprob_mode" not in (table.schema.metadata or {}):
                    raise CorruptDataError(f"{self.store.objects.where(file.file)} does not name its logprob_mode")
        except StorageError as error:
            self._add(error, file.file)
            return None
        return table

    def check_markers(self, run_ids: set[str] | None, retired: set[str]) -> None:
        """Check every shard's newest marker, and the files that no version has led to yet, but of retired runs."""
        listed = filter(None, map(parse_marker_key, self.store.objects.list("runs/")))
        shards = self.shards | {(run_id, stage, index) for run_id, stage, index, _ in listed}
        chosen = sorted(
            shard for shard in shards if shard[0] not in retired and (run_ids is None or shard[0] in run_ids)
        )
        for run_id in sorted({run_id for run_id, _, _ in chosen} - self.runs):
            self.runs.add(run_id)
            self._plan_of(RunStore(self.store.objects, run_id))
        self.num_markers = len(chosen)
        at_once(self._check_marker, chosen)

    def _check_marker(self, shard: tuple[str, str, int]) -> None:
        run_id, stage, index = shard
        key = marker_key(run_id, stage, index, 0)
        try:
            marker: ShardMarker | None = RunStore(self.store.objects, run_id).marker(stage, index)
        except RollmillError as error:
            self._add(error, key)
            return
        if marker is None:
            self.problems.append(Problem("the shard's marker is missing", key))
            return
        known = self.checked.get(marker.file)
        if known is None:
            self._check_file(marker, PROMPT_SCHEMA if stage == PROMPTS_STAGE else RESPONSE_SCHEMA)
        elif (known.rows, known.bytes, known.sha256) != (marker.rows, marker.bytes, marker.sha256):
            self.problems.append(Problem(f"the marker and the log disagree on {marker.file}", key))

    def _add(self, error: RollmillError, where: str) -> None:
        self.problems.append(Problem(str(error), where))
