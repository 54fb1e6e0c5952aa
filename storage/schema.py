"""The two fixed Arrow schemas: one row per response, and one row per prompt."""

from __future__ import annotations

import pyarrow as pa

FORMAT_VERSION = 1

_REWARD_PART = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.float64())])

RESPONSE_SCHEMA = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field("policy_version", pa.int64(), nullable=False),
        pa.field("seed", pa.uint64(), nullable=False),
        pa.field("prompt_text", pa.string(), nullable=False),
        pa.field("response_text", pa.string(), nullable=False),
        pa.field("prompt_token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("response_token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("kept_token_ids", pa.list_(pa.list_(pa.int32()))),
        pa.field("full_logprobs", pa.list_(pa.float32())),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("reward", pa.float64()),
        pa.field("reward_status", pa.string(), nullable=False),
        pa.field("reward_error", pa.string()),
        pa.field("reward_parts", pa.list_(_REWARD_PART)),
        pa.field("metadata", pa.string(), nullable=False),
    ]
)
"""One row per response.

`finish_reason` is stop, length or error (then `error` says why and the lists are empty); `reward` is null unless
`reward_status` is ok; `reward_parts` is a list of names and values, for not every reader knows maps; `metadata` is a
JSON object of the prompt's other columns. `kept_token_ids`, the ids that each token was drawn from, and
`full_logprobs`, over the whole vocabulary at temperature 1, are null unless the job asked for them.
"""

RESULT_COLUMNS = [
    "run_id",
    "prompt_id",
    "sample_index",
    "policy_version",
    "prompt_text",
    "response_text",
    "prompt_token_ids",
    "response_token_ids",
    "logprobs",
    "finish_reason",
    "reward",
    "metadata",
]
"""The columns of a response file that a `RolloutResult` is made of."""

FURTHER_COLUMNS = ("kept_token_ids", "full_logprobs")
"""Columns that only some jobs store, and that a `RolloutResult` has when its reader asks for them."""

BYTE_STREAM_SPLIT_COLUMNS = ("logprobs", "full_logprobs")
"""Columns of noisy floats, which compress better with the bytes of equal weight side by side than as a dictionary."""

PROMPT_SCHEMA = pa.schema(
    [
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("content", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("metadata", pa.string(), nullable=False),
    ]
)
"""One row per prompt of a plan. `content` is JSON: a string, a list of chat messages, a list of token ids, or null
when `error` says why the row cannot be used."""

FINISH_REASONS = ("stop", "length", "error")
"""Values of `finish_reason`: a stop token, the token limit, no answer."""

REWARD_PENDING, REWARD_OK, REWARD_FAILED, REWARD_SKIPPED = "pending", "ok", "failed", "skipped"
"""Values of `reward_status`: not scored yet, scored, the scorer failed, there was no answer to score."""
