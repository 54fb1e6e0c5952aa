"""Whole Parquet files in memory: encoded before anything is stored, checked before anything is believed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from rollmill.errors import CorruptDataError, InputError, ObjectMissingError
from rollmill.storage.objects import Objects
from rollmill.storage.retirement import missing_because_retired
from rollmill.storage.schema import BYTE_STREAM_SPLIT_COLUMNS


class CommittedFile(Protocol):
    """What a shard marker and a file of a dataset version both say about a file."""

    @property
    def file(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def sha256(self) -> str: ...


def encode(table: pa.Table, schema: pa.Schema, file_metadata: dict[str, str], where: str) -> bytes:
    """Return one Parquet file of exactly `schema`, with `file_metadata` in its footer.

    Raises CorruptDataError, naming `where`, when the table does not fit the schema.
    """
    fitted = fit(table, schema, where).replace_schema_metadata(file_metadata)
    sink = pa.BufferOutputStream()
    pq.write_table(fitted, sink, **encodings(schema))
    data: bytes = sink.getvalue().to_pybytes()
    if _open(data, where).metadata.num_rows != table.num_rows:
        raise CorruptDataError(f"{where}: the encoded file does not hold the {table.num_rows} rows it was made of")
    return data


def encodings(schema: pa.Schema) -> dict[str, Any]:
    """Return how pyarrow's writer is to encode and compress each column of `schema`."""
    split = [path for field in schema if field.name in BYTE_STREAM_SPLIT_COLUMNS for path in _leaf_paths(field)]
    dictionary = [
        path for field in schema if field.name not in BYTE_STREAM_SPLIT_COLUMNS for path in _leaf_paths(field)
    ]
    return {"compression": "zstd", "use_byte_stream_split": split, "use_dictionary": dictionary}


def fit(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """Return the table with the schema's columns, order and types; raises CorruptDataError when it cannot."""
    differing = sorted(set(table.column_names) ^ set(schema.names))
    if differing:
        raise CorruptDataError(f"{where}: columns do not fit the schema, see {', '.join(differing)}")
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise CorruptDataError(f"{where}: {error}") from error


def read_committed(objects: Objects, committed: CommittedFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a committed file's rows after checking its length, checksum, footer and number of rows.

    Raises ObjectMissingError or CorruptDataError that name the file.
    """
    return decode(check_bytes(objects, committed), objects.where(committed.file), committed.rows, columns)


def check_bytes(objects: Objects, committed: CommittedFile) -> bytes:
    """Return a committed file's bytes.

    Raises CorruptDataError when they are not those that were committed, and ObjectMissingError, which says so when
    its run was retired.
    """
    where = objects.where(committed.file)
    try:
        data = objects.get(committed.file)
    except ObjectMissingError as error:
        raise missing_because_retired(objects, committed.file) or error from error
    if len(data) != committed.bytes:
        raise CorruptDataError(f"{where} has {len(data)} bytes, {committed.bytes} were committed; {REMEDY}")
    if hashlib.sha256(data).hexdigest() != committed.sha256:
        raise CorruptDataError(f"{where} holds other bytes than were committed (sha256 differs); {REMEDY}")
    return data


REMEDY = "delete it and run its job again, which makes this shard anew"


def decode(data: bytes, where: str, num_rows: int, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a Parquet file.

    Raises CorruptDataError, naming `where`, when it is not one of `num_rows`, and InputError for an unknown column.
    """
    file = _open(data, where)
    if file.metadata.num_rows != num_rows:
        raise CorruptDataError(f"{where} holds {file.metadata.num_rows} rows, {num_rows} were committed; {REMEDY}")
    unknown = sorted(set(columns or ()) - set(file.schema_arrow.names))
    if unknown:
        raise InputError(f"{where} has no column {', '.join(unknown)}; it has {', '.join(file.schema_arrow.names)}")
    try:
        return file.read(columns=None if columns is None else list(columns))
    except (pa.ArrowException, OSError) as error:
        raise CorruptDataError(f"{where} cannot be decoded: {error}") from error


def _open(data: bytes, where: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise CorruptDataError(f"{where} is not a whole Parquet file: {error}") from error


def _leaf_paths(field: pa.Field, parent: str = "") -> list[str]:
    path = f"{parent}{field.name}"
    if pa.types.is_struct(field.type):
        return [leaf for inner in field.type.fields for leaf in _leaf_paths(inner, f"{path}.")]
    if pa.types.is_list(field.type):
        return _leaf_paths(field.type.value_field.with_name("element"), f"{path}.list.")
    return [path]
