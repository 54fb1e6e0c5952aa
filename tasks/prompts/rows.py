"""From a source's row to a prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollmill.tasks.prompts.content import find_prompt_column, to_content
from rollmill.tasks.prompts.jsonable import BadValueError, checked_text, to_jsonable
from rollmill.tasks.prompts.prompt import Content, Prompt, to_json

ID_COLUMN = "prompt_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """One row as a source read it: its `place` (line 7, row 7), and its values or why there are none."""

    place: str
    values: Mapping[str, Any] | None = None
    error: str | None = None


def to_prompt(row: SourceRow, index: int, chosen_column: str | None) -> Prompt:
    """Return the row at `index` (from 0) as a prompt; a row that cannot be used becomes one with an error."""
    if row.values is None:
        return Prompt(prompt_id=generated_id(None, index), content=None, error=f"{row.place}: {row.error}")
    prompt_id, columns = None, {}
    try:
        prompt_id = _given_id(row.values)
        column = find_prompt_column(row.values, chosen_column)
        columns = _other_columns(row.values, column)
        content = to_content(row.values[column], column)
    except (BadValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        prompt_id = prompt_id or generated_id(None, index)
        return Prompt(prompt_id=prompt_id, content=None, columns=columns, error=f"{row.place}: {reason}")
    return Prompt(prompt_id=prompt_id or generated_id(content, index), content=content, columns=columns)


def generated_id(content: Content, index: int) -> str:
    """Return the id of a row that brings none: 20 hexadecimal digits from its content and its index."""
    return hashlib.sha256(f"{index}\n{to_json(content)}".encode()).hexdigest()[:20]


def _given_id(values: Mapping[str, Any]) -> str | None:
    """Return the row's own id as text, None when it has none."""
    given = to_jsonable(values.get(ID_COLUMN), ID_COLUMN)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (str, int)) or given == "":
        raise BadValueError(f"{ID_COLUMN} must be text or a whole number, got {given!r}")
    return str(given)


def _other_columns(values: Mapping[str, Any], column: str) -> dict[str, Any]:
    return {
        checked_text(name, "a column's name"): to_jsonable(value, name)
        for name, value in values.items()
        if name not in (column, ID_COLUMN)
    }
