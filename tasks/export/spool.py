"""The records of each split on the local disk, as the files that will be put in place."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rollmill.errors import StoreAccessError
from rollmill.storage.parquet import encodings
from rollmill.tasks.export.split import SPLITS

_BYTES_PER_ROW_GROUP = 8 * 2**20
_BYTES_PER_FILE = 32 * 2**20  # a file is in memory while it is put in place


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledFile:
    """A finished file of a split."""

    path: Path
    split: str
    rows: int
    bytes: int
    sha256: str

    @property
    def name(self) -> str:
        return self.path.name


class Spool:
    """Writes the records of each split, in the order in which they come, into files of about 32 MB.

    The same records give the same bytes. What a failure leaves here is a short file that nobody has seen, for the
    folder is the writer's own.
    """

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._splits = {split: _SplitFiles(folder, split, schema) for split in SPLITS}

    def add(self, split: str, records: pa.Table) -> None:
        """Append records. Raises StoreAccessError when the disk is full."""
        try:
            self._splits[split].add(records)
        except OSError as error:
            raise _unusable(error) from error

    def finish(self) -> list[SpooledFile]:
        """Return all files, train before test; a split without records has none."""
        try:
            return [file for split in self._splits.values() for file in split.finish()]
        except OSError as error:
            raise _unusable(error) from error


class _SplitFiles:
    def __init__(self, folder: Path, split: str, schema: pa.Schema) -> None:
        self._folder, self._split, self._schema = folder, split, schema
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._num_bytes_waiting = 0
        self._paths: list[Path] = []

    def add(self, records: pa.Table) -> None:
        self._waiting.append(records)
        self._num_bytes_waiting += records.nbytes
        if self._num_bytes_waiting >= _BYTES_PER_ROW_GROUP:
            self._write()

    def finish(self) -> list[SpooledFile]:
        self._write()
        self._close()
        return [self._described(path) for path in self._paths]

    def _write(self) -> None:
        """Write what waits as one row group."""
        records = pa.concat_tables(self._waiting, promote_options="none") if self._waiting else None
        self._waiting, self._num_bytes_waiting = [], 0
        if records is None or not records.num_rows:
            return
        if self._writer is None:
            self._paths.append(self._folder / f"{self._split}-{len(self._paths):05d}.parquet")
            self._writer = pq.ParquetWriter(self._paths[-1], self._schema, **encodings(self._schema))
        self._writer.write_table(records, row_group_size=records.num_rows)
        if self._paths[-1].stat().st_size >= _BYTES_PER_FILE:
            self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _described(self, path: Path) -> SpooledFile:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        rows = pq.read_metadata(path).num_rows
        return SpooledFile(path=path, split=self._split, rows=rows, bytes=path.stat().st_size, sha256=sha256)


def _unusable(error: OSError) -> StoreAccessError:
    return StoreAccessError(
        f"the temporary folder cannot be written: {error.strerror or error} at {error.filename}; free some space, or "
        "set TMPDIR to a folder that has room for the whole training set"
    )
