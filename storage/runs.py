"""A run's plan and shards: what is committed, what is still to do.

A shard is committed by its marker, which is created only once. Nothing is ever deleted or overwritten: when the file
of a committed shard is lost, or rewards that failed are there now, a marker of the next generation takes the place of
the last, so workers that do this at the same time cannot undo each other's commits.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

import pyarrow as pa

from rollmill.errors import CorruptDataError, ObjectExistsError, ObjectMissingError
from rollmill.storage.concurrency import at_once
from rollmill.storage.layout import (
    check_format,
    claim_format,
    data_key,
    data_prefix,
    marker_key,
    markers_prefix,
    parse_marker_key,
    plan_key,
)
from rollmill.storage.objects import Objects
from rollmill.storage.parquet import encode, read_committed
from rollmill.storage.plan import Plan, check_run_id, refuse_mismatch
from rollmill.storage.retirement import refuse_retired
from rollmill.storage.rows import check_rows
from rollmill.storage.schema import RESPONSE_SCHEMA

logger = logging.getLogger(__name__)

_MAX_ASKED_ONE_BY_ONE = 8  # a listing of the whole run pays from about this many shards on
_SECONDS_TO_COMMIT = 1800.0  # half of the least age of what `vacuum` removes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMarker:
    """The commit of one shard: which file holds it, how many rows and bytes, and numbers of the caller's own."""

    index: int
    file: str
    rows: int
    bytes: int
    sha256: str
    stats: dict[str, Any] = field(default_factory=dict)
    generation: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


class RunStore:
    """The stored side of one run."""

    def __init__(self, objects: Objects, run_id: str) -> None:
        check_run_id(run_id)
        self.objects = objects
        self.run_id = run_id

    def open_plan(self, plan: Plan) -> Plan:
        """Store the plan of a new run, or return the plan to continue an existing run with.

        The existing plan's shards are kept, with the tuning of the one given. Raises PlanMismatchError, naming each
        field, when the existing run would give other rows, and JobError when the run was retired.
        """
        if plan.run_id != self.run_id:
            raise ValueError(f"this is the plan of run {plan.run_id}, not of {self.run_id}")
        claim_format(self.objects)
        refuse_retired(self.objects, self.run_id)
        try:
            self.objects.create(plan_key(self.run_id), plan.to_json().encode())
        except ObjectExistsError:
            existing = self._existing_plan()
            refuse_mismatch(existing, plan, self.objects.where(plan_key(self.run_id)))
            return replace(existing, tuning=plan.tuning)
        return plan

    def load_plan(self) -> Plan | None:
        """Return the stored plan, or None when the run has not begun. Raises StoreAccessError for a newer format."""
        check_format(self.objects)
        try:
            return self._existing_plan()
        except ObjectMissingError:
            return None

    def write_shard(
        self,
        stage: str,
        index: int,
        table: pa.Table,
        *,
        schema: pa.Schema,
        file_metadata: dict[str, str],
        stats: dict[str, Any],
        replaces: ShardMarker | None = None,
    ) -> ShardMarker:
        """Commit one shard of a stage and return its marker: the winner's, when another worker was first.

        With `replaces`, the commit takes the place of that one, whose file stays for the versions that list it.

        `file_metadata` goes into the file's footer; that of responses names their `logprob_mode`. `stats` are JSON
        values for reports. Raises CorruptDataError, before anything is stored, when the table does not fit `schema`
        or a row contradicts itself.
        """
        where = f"shard {index} of {stage} of run {self.run_id}"
        if schema is RESPONSE_SCHEMA and "logprob_mode" not in file_metadata:
            raise ValueError(f"{where}: file_metadata must name the logprob_mode")
        data = encode(table, schema, file_metadata, where)
        if schema is RESPONSE_SCHEMA:
            check_rows(table, where)
        marker = ShardMarker(
            index=index,
            file=self._new_file(stage, index),
            rows=table.num_rows,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            stats=stats,
            generation=0 if replaces is None else replaces.generation + 1,
        )
        text = marker.to_json()  # before the file is stored, for stats may hold what JSON does not
        while self._seconds_to_store(marker, data) > _SECONDS_TO_COMMIT:  # this process was held up: see `vacuum`
            marker = replace(marker, file=self._new_file(stage, index))
        logger.debug("stored %s: %s", where, text)
        return self._commit(stage, marker)

    def marker(self, stage: str, index: int) -> ShardMarker | None:
        """Return the newest marker of a shard, or None when it was never committed; its file is not looked at."""
        newest = None
        for generation in count():
            try:
                newest = self.read_marker(stage, index, generation)
            except ObjectMissingError:
                break
        return newest

    def markers(self, stage: str, indexes: Iterable[int]) -> dict[int, ShardMarker]:
        """Return the newest marker of each shard that was ever committed."""
        chosen = list(indexes)
        if len(chosen) <= _MAX_ASKED_ONE_BY_ONE:
            found = at_once(lambda index: self.marker(stage, index), chosen)
            return {marker.index: marker for marker in found if marker is not None}
        newest = self._newest_generations(stage, set(chosen))
        return {marker.index: marker for marker in at_once(lambda item: self.read_marker(stage, *item), newest.items())}

    def finished(self, stage: str, indexes: Iterable[int]) -> dict[int, ShardMarker]:
        """Return the markers whose files are there with the right size; all other shards are still to do.

        Asked for many, it lists the run's objects and reads each marker once; a listing that is behind only makes a
        shard look unfinished, and whoever does it again finds the commit when he makes his own.
        """
        chosen = list(indexes)
        markers = self.markers(stage, chosen)
        many = len(chosen) > _MAX_ASKED_ONE_BY_ONE
        stored = self.objects.scan(data_prefix(self.run_id, stage)) if many else []
        sizes = {entry.key: entry.bytes for entry in stored}
        unsure = [marker for marker in markers.values() if sizes.get(marker.file) != marker.bytes]
        lost = [marker for marker, whole in zip(unsure, at_once(self._is_whole, unsure), strict=True) if not whole]
        for marker in lost:
            self._warn_of_loss(stage, marker)
        return {index: marker for index, marker in markers.items() if marker not in lost}

    def read_shard(self, stage: str, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a committed shard's rows, checked against its marker.

        Raises ObjectMissingError when the shard or its file is not there, CorruptDataError when the file differs.
        """
        marker = self.marker(stage, index)
        if marker is None:
            where = self.objects.where(marker_key(self.run_id, stage, index, 0))
            raise ObjectMissingError(f"shard {index} of {stage} of run {self.run_id} is not committed: no {where}")
        return read_committed(self.objects, marker, columns)

    def _existing_plan(self) -> Plan:
        key = plan_key(self.run_id)
        plan = Plan.from_json(self.objects.get(key), self.objects.where(key))
        if plan.run_id != self.run_id:
            raise CorruptDataError(f"{self.objects.where(key)} is the plan of run {plan.run_id}")
        return plan

    def _commit(self, stage: str, marker: ShardMarker) -> ShardMarker:
        while True:
            key = marker_key(self.run_id, stage, marker.index, marker.generation)
            try:
                self.objects.create(key, marker.to_json().encode())
            except ObjectExistsError:
                winner = self.marker(stage, marker.index)
                if winner is None:
                    continue
                if self._is_whole(winner):
                    return winner
                marker = replace(marker, generation=winner.generation + 1)
            else:
                return marker

    def _newest_generations(self, stage: str, indexes: set[int]) -> dict[int, int]:
        """Return the newest generation of each listed marker, by shard."""
        listed = filter(None, map(parse_marker_key, self.objects.list(markers_prefix(self.run_id, stage))))
        newest: dict[int, int] = {}
        for _, _, index, generation in listed:
            if index in indexes:
                newest[index] = max(generation, newest.get(index, 0))
        return newest

    def read_marker(self, stage: str, index: int, generation: int) -> ShardMarker:
        """Return one generation's marker. Raises ObjectMissingError when it was never committed."""
        key = marker_key(self.run_id, stage, index, generation)
        return _parse_marker(self.objects.get(key), self.objects.where(key), index, generation)

    def _warn_of_loss(self, stage: str, marker: ShardMarker) -> None:
        logger.warning(
            "shard %d of %s of run %s will be made again: %s is gone or has another size than was committed",
            marker.index, stage, self.run_id, self.objects.where(marker.file),
        )  # fmt: skip

    def _new_file(self, stage: str, index: int) -> str:
        return data_key(self.run_id, stage, index, uuid.uuid4().hex[:16])

    def _seconds_to_store(self, marker: ShardMarker, data: bytes) -> float:
        begin = time.time()  # not the monotonic clock, which stands still while the machine sleeps
        self.objects.put(marker.file, data)
        if not self._is_whole(marker):
            where = self.objects.where(marker.file)
            raise CorruptDataError(f"{where} was not stored whole: {len(data)} bytes were written")
        return abs(time.time() - begin)

    def _is_whole(self, marker: ShardMarker) -> bool:
        return self.objects.size(marker.file) == marker.bytes


def _parse_marker(text: bytes, where: str, index: int, generation: int) -> ShardMarker:
    try:
        marker = ShardMarker(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise CorruptDataError(f"{where} is not a shard marker: {error}") from error
    if (marker.index, marker.generation) != (index, generation):
        raise CorruptDataError(f"{where} is the marker of shard {marker.index}, generation {marker.generation}")
    return marker
