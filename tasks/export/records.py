"""The columns of each format's records."""

from __future__ import annotations

import pyarrow as pa

from rollmill.storage.schema import RESPONSE_SCHEMA
from rollmill.tasks.selection.config import TrainingFormat
from rollmill.tasks.selection.conversations import MESSAGES

_ORIGIN = [("prompt_id", pa.string()), ("run_id", pa.string()), ("policy_version", pa.int64())]
_ANSWER = [*_ORIGIN, ("sample_index", pa.int32()), ("reward", pa.float64())]

RECORD_SCHEMAS: dict[TrainingFormat, pa.Schema] = {
    "sft": pa.schema([("messages", MESSAGES), *_ANSWER]),
    "dpo": pa.schema(
        [
            ("prompt", MESSAGES),
            ("chosen", MESSAGES),
            ("rejected", MESSAGES),
            *_ORIGIN,
            ("chosen_sample_index", pa.int32()),
            ("rejected_sample_index", pa.int32()),
            ("chosen_reward", pa.float64()),
            ("rejected_reward", pa.float64()),
        ]
    ),
    "kto": pa.schema([("prompt", MESSAGES), ("completion", MESSAGES), ("label", pa.bool_()), *_ANSWER]),
    "table": RESPONSE_SCHEMA,
}
"""The schema of each format: what the trainer reads first, then where the record comes from."""

REWARD_COLUMNS: dict[TrainingFormat, tuple[str, ...]] = {
    "sft": ("reward",),
    "dpo": ("chosen_reward", "rejected_reward"),
    "kto": ("reward",),
    "table": ("reward",),
}
"""The columns of each format that hold rewards."""

_READ = [
    "run_id", "prompt_id", "sample_index", "policy_version", "seed", "prompt_text", "response_text",
    "response_token_ids", "finish_reason", "error", "reward", "reward_status", "reward_error", "metadata",
]  # fmt: skip


def columns_to_read(training_format: TrainingFormat) -> list[str] | None:
    """Return the columns of the rows that a format and every filter need; None for all."""
    return None if training_format == "table" else list(_READ)


def to_records(selected: pa.Table, training_format: TrainingFormat) -> pa.Table:
    """Return the columns of the format, in its schema; a column that older files do not have is null."""
    schema = RECORD_SCHEMAS[training_format]
    for field in schema:
        if field.nullable and field.name not in selected.column_names:
            selected = selected.append_column(field, pa.nulls(selected.num_rows, field.type))
    return selected.select(schema.names).cast(schema)
