"""What must hold within each row of a response table, whoever wrote it."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from rollmill.errors import CorruptDataError
from rollmill.storage.schema import FINISH_REASONS, REWARD_FAILED, REWARD_OK, REWARD_PENDING, REWARD_SKIPPED

_REWARD_STATUSES = (REWARD_PENDING, REWARD_OK, REWARD_FAILED, REWARD_SKIPPED)


def check_rows(table: pa.Table, where: str) -> None:
    """Raise CorruptDataError, naming the first bad row, when a row contradicts itself."""
    for reason, bad in _violations(table):
        indexes = pc.indices_nonzero(bad)
        if len(indexes):
            row = indexes[0].as_py()
            prompt_id, sample_index = table["prompt_id"][row].as_py(), table["sample_index"][row].as_py()
            raise CorruptDataError(f"{where}: row {row} (prompt {prompt_id}, sample {sample_index}): {reason}")


def _violations(table: pa.Table) -> list[tuple[str, pa.ChunkedArray]]:
    """Return (what is wrong, where it is true) pairs."""
    num_tokens = pc.list_value_length(table["response_token_ids"])
    failed = pc.equal(table["finish_reason"], "error")
    scored = pc.equal(table["reward_status"], REWARD_OK)
    reward = table["reward"]
    return [
        ("finish_reason is not stop, length or error", pc.invert(_is_in(table["finish_reason"], FINISH_REASONS))),
        ("reward_status is unknown", pc.invert(_is_in(table["reward_status"], _REWARD_STATUSES))),
        ("token ids and logprobs differ in number", pc.not_equal(num_tokens, pc.list_value_length(table["logprobs"]))),
        ("kept_token_ids and tokens differ in number", _differs(table["kept_token_ids"], num_tokens)),
        ("full_logprobs and tokens differ in number", _differs(table["full_logprobs"], num_tokens)),
        ("a failed row holds tokens", pc.and_(failed, pc.greater(num_tokens, 0))),
        ("a failed row does not say why", pc.and_(failed, pc.is_null(table["error"]))),
        ("an answer has no tokens but is not marked as failed", pc.and_(pc.invert(failed), pc.equal(num_tokens, 0))),
        ("reward is null but its status is ok", pc.and_(scored, pc.is_null(reward))),
        ("reward is set but its status is not ok", pc.and_(pc.invert(scored), pc.is_valid(reward))),
        ("reward is not finite", pc.fill_null(pc.invert(pc.is_finite(reward)), False)),
        ("a logprob is null or not finite", _holds_not_finite(table["logprobs"])),
        ("metadata is not a JSON object", pc.invert(_is_in(table["metadata"], _json_objects(table["metadata"])))),
    ]


def _differs(optional: pa.ChunkedArray, num_tokens: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.not_equal(pc.list_value_length(optional), num_tokens), False)


def _is_in(column: pa.ChunkedArray, values: tuple[str, ...] | list[str]) -> pa.ChunkedArray:
    return pc.is_in(column, value_set=pa.array(values, pa.string()))


def _holds_not_finite(lists: pa.ChunkedArray) -> pa.Array:
    rows = pc.list_parent_indices(lists)
    bad = pc.invert(pc.fill_null(pc.is_finite(pc.list_flatten(lists)), False))
    return pc.is_in(pa.array(range(len(lists)), pa.int64()), value_set=pc.unique(pc.filter(rows, bad)))


def _json_objects(column: pa.ChunkedArray) -> list[str]:
    return [text for text in pc.unique(column).to_pylist() if _is_json_object(text)]


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
