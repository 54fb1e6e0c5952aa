"""Rows of the stored schema as what rewards look at, and what came of them as columns of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from rollmill.storage.schema import RESPONSE_SCHEMA, REWARD_FAILED, REWARD_OK, REWARD_SKIPPED
from rollmill.tasks.rewards.item import Group, Item, Outcome

_READ = ("run_id", "prompt_id", "prompt_text", "response_text", "response_token_ids", "finish_reason", "metadata")


def groups_of_table(table: pa.Table, contents: Mapping[str, Any]) -> list[Group]:
    """Return the rows of `table` as groups: neighbouring rows of one prompt of one run.

    `contents` has what prompts were before they were rendered, by prompt_id; those that it lacks are not known.
    """
    groups: list[Group] = []
    previous = None
    for row in table.select(_READ).to_pylist():
        key = (row["run_id"], row["prompt_id"])
        if key != previous:
            groups.append([])
        groups[-1].append(_item(row, contents.get(row["prompt_id"])))
        previous = key
    return groups


def with_outcomes(table: pa.Table, outcomes: Sequence[Sequence[Outcome | None]]) -> pa.Table:
    """Return `table` with its four reward columns replaced; None stands for a row without an answer to score."""
    rows = list(chain.from_iterable(outcomes))
    columns = {
        "reward": [row.value if row else None for row in rows],
        "reward_status": [_status(row) for row in rows],
        "reward_error": [row.reason if row else None for row in rows],
        "reward_parts": [_named(row) for row in rows],
    }
    for name, values in columns.items():
        field = RESPONSE_SCHEMA.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, type=field.type))
    return table


def _item(row: dict[str, Any], content: Any) -> Item:
    return Item(
        prompt=row["prompt_text"],
        response=row["response_text"],
        columns=json.loads(row["metadata"]),
        token_ids=row["response_token_ids"],
        finish_reason=row["finish_reason"],
        messages=messages_of(content),
    )


def messages_of(content: Any) -> list[dict[str, Any]] | None:
    """Return a prompt's content as a conversation: its messages, or its text as the user's; None for token ids."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    is_conversation = isinstance(content, list) and bool(content) and isinstance(content[0], dict)
    return content if is_conversation else None


def _status(outcome: Outcome | None) -> str:
    if outcome is None:
        return REWARD_SKIPPED
    return REWARD_FAILED if outcome.value is None else REWARD_OK


def _named(outcome: Outcome | None) -> list[dict[str, Any]] | None:
    return None if outcome is None else [{"name": name, "value": value} for name, value in outcome.parts.items()]
