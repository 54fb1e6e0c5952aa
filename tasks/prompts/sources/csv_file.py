"""Prompt rows of a CSV file with a header line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator

from rollmill.errors import PromptSourceError
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.rows import SourceRow
from rollmill.tasks.prompts.sources.files import open_source

MAX_FIELD_CHARACTERS = 16 << 20
"""A longer field becomes an error row, so that a quote that never closes cannot fill the memory."""

JSON_COLUMNS = ("messages", "input_ids")
"""Lists have no CSV form, so cells of these columns are read as JSON; all other cells are text."""


def rows(config: PromptsConfig) -> Iterator[SourceRow]:
    """Yield one row a record; an undecodable byte spoils only its own row."""
    # The limit is the csv module's own, for the whole process; it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD_CHARACTERS))
    with (
        open_source(config) as handle,
        io.TextIOWrapper(handle, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
    ):
        records = csv.reader(text)
        header = _header(records, config.source)
        yield from _rows(records, header)


def _header(records: Iterator[list[str]], source: str) -> list[str]:
    try:
        header = next(records, [])
    except csv.Error as error:
        raise PromptSourceError(f"prompts.source {source} has no readable header line: {error}") from error
    twice = {name for name in header if header.count(name) > 1}
    if twice:
        raise PromptSourceError(f"prompts.source {source} names the column {min(twice)!r} twice in its header")
    return header


def _rows(records: Iterator[list[str]], header: list[str]) -> Iterator[SourceRow]:
    number = 0
    while True:
        number += 1
        place = f"row {number}"
        try:
            record = next(records)
        except StopIteration:
            return
        except csv.Error as error:
            yield SourceRow(place=place, error=f"it is not valid CSV: {error}")
            continue
        if not record:  # a blank line
            number -= 1
            continue
        yield _row(record, header, place)


def _row(record: list[str], header: list[str], place: str) -> SourceRow:
    if len(record) != len(header):
        return SourceRow(place=place, error=f"it has {len(record)} fields where the header has {len(header)}")
    values: dict[str, object] = dict(zip(header, record, strict=True))
    for name in JSON_COLUMNS:
        cell = values.get(name)
        if isinstance(cell, str):
            try:
                values[name] = json.loads(cell) if cell.strip() else None
            except (ValueError, RecursionError) as error:
                return SourceRow(place=place, error=f"{name} is not valid JSON: {error}")
    return SourceRow(place=place, values=values)
