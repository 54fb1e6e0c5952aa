"""One prompt of a dataset, and the stored table of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rollmill.storage.schema import PROMPT_SCHEMA

_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

Content = str | list[dict[str, Any]] | list[int] | None
"""Text, chat messages (each with a `role`), token ids, or None when the row cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row of the prompt dataset; `columns` are its other columns as JSON values.

    When `error` is set it says why the row cannot be used, and `content` is None.
    """

    prompt_id: str
    content: Content
    columns: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


def prompts_to_table(prompts: Iterable[Prompt]) -> pa.Table:
    """Return the prompts as rows of PROMPT_SCHEMA, in their order."""
    return rows_to_table(prompt_row(prompt) for prompt in prompts)


Row = tuple[str, str, str | None, str]
"""A prompt as the values of a row of PROMPT_SCHEMA."""


def prompt_row(prompt: Prompt) -> Row:
    """Return a prompt's row."""
    return prompt.prompt_id, to_json(prompt.content), prompt.error, to_json(prompt.columns)


def rows_to_table(rows: Iterable[Row]) -> pa.Table:
    """Return rows of PROMPT_SCHEMA as a table."""
    columns = list(zip(*rows, strict=True)) or [()] * len(PROMPT_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, PROMPT_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=PROMPT_SCHEMA)


def prompts_from_table(table: pa.Table) -> Iterator[Prompt]:
    """Yield the prompts of a table that `prompts_to_table` made, equal to what went in."""
    for batch in table.to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            yield Prompt(
                prompt_id=row["prompt_id"],
                content=json.loads(row["content"]),
                columns=json.loads(row["metadata"]),
                error=row["error"],
            )


def to_json(value: object) -> str:
    """Return compact JSON in which equal values give equal text; raises ValueError for NaN and infinities."""
    return _ENCODE(value)
