"""Filters that look at one answer at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollmill.errors import JobError
from rollmill.tasks.generation.types import FINISH_ERROR, FINISH_LENGTH
from rollmill.tasks.row_filter import RowFilter
from rollmill.tasks.selection.groups import num_tokens_of, rewards_of
from rollmill.tasks.selection.reasons import (
    MATCHING,
    NOT_ANSWERED,
    NOT_MATCHING,
    NOT_SCORED,
    TOO_LONG,
    TOO_SHORT,
    TRUNCATED,
    WHERE,
)
from rollmill.tasks.selection.selected import Selected, keep, keep_unless


def answered(table: pa.Table) -> Selected:
    """Keep answers; drop the rows of prompts that could not be answered."""
    return keep(table, pc.not_equal(table["finish_reason"], FINISH_ERROR), NOT_ANSWERED)


def scored(table: pa.Table) -> Selected:
    """Keep answers that have a reward."""
    return keep(table, ~np.isnan(rewards_of(table)), NOT_SCORED)


def complete(table: pa.Table) -> Selected:
    """Keep answers that ended by themselves; drop those cut at the token limit."""
    return keep(table, pc.not_equal(table["finish_reason"], FINISH_LENGTH), TRUNCATED)


def within_length(table: pa.Table, min_tokens: int | None = None, max_tokens: int | None = None) -> Selected:
    """Keep answers whose number of tokens is within the bounds, each of which may be left out.

    Raises JobError for a maximum below the minimum.
    """
    if min_tokens is not None and max_tokens is not None and max_tokens < min_tokens:
        raise JobError(f"max_tokens must be at least min_tokens, got {max_tokens} < {min_tokens}")
    lengths = num_tokens_of(table)
    faults = [] if min_tokens is None else [(TOO_SHORT, lengths < min_tokens)]
    faults += [] if max_tokens is None else [(TOO_LONG, lengths > max_tokens)]
    return keep_unless(table, faults)


def matching(table: pa.Table, pattern: str) -> Selected:
    """Keep answers in which a regular expression (RE2 syntax) is found. Raises JobError for one that is none."""
    return keep(table, _found(table, pattern), NOT_MATCHING)


def not_matching(table: pa.Table, pattern: str) -> Selected:
    """Keep answers in which a regular expression (RE2 syntax) is not found. Raises JobError for one that is none."""
    return keep(table, pc.invert(_found(table, pattern)), MATCHING)


def satisfying(table: pa.Table, condition: RowFilter) -> Selected:
    """Keep rows of which the condition holds."""
    return keep(table, condition.chosen(table), WHERE)


def check_pattern(pattern: str) -> str:
    """Return `pattern`. Raises JobError, with the reason, when it is no regular expression."""
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        raise JobError(f"{pattern!r} is not a regular expression (RE2 syntax): {error}") from error
    return pattern


def _found(table: pa.Table, pattern: str) -> pa.ChunkedArray:
    return pc.match_substring_regex(table["response_text"], check_pattern(pattern))
