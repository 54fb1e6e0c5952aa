"""Prompt rows of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from rollmill.errors import PromptSourceError
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.rows import SourceRow
from rollmill.tasks.prompts.sources.files import READ_BYTES, open_source

_ROWS_AT_A_TIME = 256


def rows(config: PromptsConfig) -> Iterator[SourceRow]:
    """Yield the file's rows, decoding a few hundred at a time."""
    with open_source(config) as handle:
        try:
            file = pq.ParquetFile(handle, pre_buffer=False, buffer_size=READ_BYTES)
            number = 0
            for batch in file.iter_batches(batch_size=_ROWS_AT_A_TIME):
                yield from _rows(batch, number)
                number += batch.num_rows
        except pa.ArrowException as error:
            reason = " ".join(str(error).split())
            raise PromptSourceError(
                f"prompts.source {config.source} is not a readable Parquet file: {reason}"
            ) from error


def _rows(batch: pa.RecordBatch, before: int) -> Iterator[SourceRow]:
    try:
        for offset, values in enumerate(batch.to_pylist(), start=1):
            yield SourceRow(place=f"row {before + offset}", values=values)
    except UnicodeDecodeError:
        for offset in range(batch.num_rows):
            yield _row(batch.slice(offset, 1), f"row {before + offset + 1}")


def _row(batch: pa.RecordBatch, place: str) -> SourceRow:
    try:
        return SourceRow(place=place, values=batch.to_pylist()[0])
    except UnicodeDecodeError as error:
        return SourceRow(place=place, error=f"it holds text that is not UTF-8: {error.reason}")
