"""From stored rows to the padded tensors of a `RolloutResult`, without a loop over tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from rollmill.storage.group_table import KEPT_IDS, RESPONSE_TEXT, GroupTable
from rollmill.storage.kept import kept_tokens
from rollmill.storage.ragged import Choice, padded, padded_mask
from rollmill.storage.results import RolloutResult

Chosen = tuple[GroupTable, NDArray[np.int64]]
"""Some groups of a table, by their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """The token id that fills up, and on which side, left or right."""

    pad_id: int = 0
    prompt_side: str = "left"
    response_side: str = "right"

    def __post_init__(self) -> None:
        for side in (self.prompt_side, self.response_side):
            if side not in ("left", "right"):
                raise ValueError(f"padding side must be left or right, got {side}")


def assemble(rows: pa.Table, *, policy_version: int, logprob_mode: str, padding: Padding) -> RolloutResult:
    """Return the groups of `rows` (RESULT_COLUMNS), in the order in which they first appear.

    Raises CorruptDataError when the groups are not all of one size, with samples 0 to G - 1 exactly once.
    """
    table = GroupTable.of(rows)
    return pad_groups(
        [(table, np.arange(table.num_groups))],
        table.group_size if table.num_groups else 0,
        policy_version=policy_version,
        logprob_mode=logprob_mode,
        padding=padding,
    )


def pad_groups(
    chosen: Sequence[Chosen], group_size: int, *, policy_version: int, logprob_mode: str, padding: Padding
) -> RolloutResult:
    """Return the chosen groups as tensors, samples in order of their index.

    Rewards are NaN where they are null, rows without an answer have an empty mask.
    """
    rows = [(table, table.order[groups].reshape(-1)) for table, groups in chosen]
    firsts = [(table, table.order[groups, 0]) for table, groups in chosen]
    shape = (sum(len(groups) for _, groups in chosen), group_size)
    asked, answers = _lists(firsts, "prompt_token_ids"), _lists(rows, "response_token_ids")
    prompts = padded(asked, np.int64, padding.pad_id, padding.prompt_side)
    responses = padded(answers, np.int64, padding.pad_id, padding.response_side)
    response_mask = padded_mask(answers, padding.response_side)
    logprobs = padded(_lists(rows, "logprobs"), np.float32, 0.0, padding.response_side)
    has = {name for table, _ in chosen[:1] for name in table.lists}
    full = None
    if "full_logprobs" in has:
        full = padded(_lists(rows, "full_logprobs"), np.float32, 0.0, padding.response_side)
    return RolloutResult(
        prompts=torch.from_numpy(prompts),
        prompt_mask=torch.from_numpy(padded_mask(asked, padding.prompt_side)),
        responses=torch.from_numpy(responses.reshape(*shape, responses.shape[1])),
        response_mask=torch.from_numpy(response_mask.reshape(*shape, responses.shape[1])),
        logprobs_old=torch.from_numpy(logprobs.reshape(*shape, responses.shape[1])),
        full_logprobs=None if full is None else torch.from_numpy(full.reshape(*shape, responses.shape[1])),
        kept_tokens=kept_tokens(rows, responses.shape[1], padding.response_side) if KEPT_IDS in has else None,
        rewards=torch.from_numpy(_numbers(rows, "reward", np.float32).reshape(shape)),
        prompt_texts=_texts(firsts, "prompt_text"),
        response_texts=_nested(
            [text for table, numbers in rows for text in table.lists[RESPONSE_TEXT].texts(numbers)], group_size
        ),
        prompt_ids=_texts(firsts, "prompt_id"),
        finish_reasons=_nested(_texts(rows, "finish_reason"), group_size),
        policy_version=policy_version,
        policy_versions=torch.from_numpy(_numbers(firsts, "policy_version", np.int64)),
        logprob_mode=logprob_mode,
        columns=_columns(_texts(firsts, "metadata")),
    )


def _lists(rows: Sequence[Chosen], name: str) -> list[Choice]:
    return [(table.lists[name], numbers) for table, numbers in rows]


def _numbers(rows: Sequence[Chosen], name: str, dtype: type[np.generic]) -> NDArray[Any]:
    """Return one number a row; NaN where it is null."""
    parts = [table.numbers[name][numbers].astype(dtype) for table, numbers in rows]
    return np.concatenate([np.empty(0, dtype), *parts])


def _texts(rows: Sequence[Chosen], name: str) -> list[str]:
    return [text for table, numbers in rows for text in table.texts[name][numbers].tolist()]


def _nested(values: list[str], group_size: int) -> list[list[str]]:
    return [values[start : start + group_size] for start in range(0, len(values), max(group_size, 1))]


def _columns(metadata: list[str]) -> dict[str, list[Any]]:
    """Return one list per key that any prompt has; None for the prompts without it."""
    records = [json.loads(text) for text in metadata]
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}
