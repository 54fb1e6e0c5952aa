"""From ragged stored rows to the padded tensors of a `RolloutResult`, without a loop over tokens."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from rollmill.errors import CorruptDataError
from rollmill.storage.results import RolloutResult


def assemble(
    rows: pa.Table,
    *,
    policy_version: int,
    logprob_mode: str,
    pad_id: int = 0,
    prompt_side: str = "left",
    response_side: str = "right",
) -> RolloutResult:
    """Return the groups of `rows`, in the order in which they first appear, samples in order of their index.

    Rewards are NaN where they are null, rows without an answer have an empty mask. Raises CorruptDataError when the
    groups are not all of one size, with samples 0 to G - 1 exactly once.
    """
    order, group_size = _group_order(rows)
    rows = rows.take(pa.array(order)).combine_chunks()
    groups = rows.take(pa.array(np.arange(0, len(order), max(group_size, 1))))
    shape = (groups.num_rows, group_size)
    prompts, prompt_mask = _padded(groups["prompt_token_ids"], np.dtype(np.int64), pad_id, prompt_side)
    responses, response_mask = _padded(rows["response_token_ids"], np.dtype(np.int64), pad_id, response_side)
    logprobs, logprobs_mask = _padded(rows["logprobs"], np.dtype(np.float32), 0.0, response_side)
    if not np.array_equal(response_mask, logprobs_mask):
        raise CorruptDataError("token ids and logprobs of a row differ in number")
    return RolloutResult(
        prompts=torch.from_numpy(prompts),
        prompt_mask=torch.from_numpy(prompt_mask),
        responses=torch.from_numpy(responses.reshape(*shape, responses.shape[1])),
        response_mask=torch.from_numpy(response_mask.reshape(*shape, response_mask.shape[1])),
        logprobs_old=torch.from_numpy(logprobs.reshape(*shape, logprobs.shape[1])),
        rewards=torch.from_numpy(rows["reward"].to_numpy().astype(np.float32).reshape(shape)),
        prompt_texts=groups["prompt_text"].to_pylist(),
        response_texts=_nested(rows["response_text"].to_pylist(), group_size),
        prompt_ids=groups["prompt_id"].to_pylist(),
        finish_reasons=_nested(rows["finish_reason"].to_pylist(), group_size),
        policy_version=policy_version,
        logprob_mode=logprob_mode,
        columns=_columns(groups["metadata"].to_pylist()),
    )


def _group_order(rows: pa.Table) -> tuple[NDArray[np.int64], int]:
    """Return the row numbers group by group, and G."""
    names = pc.binary_join_element_wise(rows["run_id"], rows["prompt_id"], "/")
    encoded = pa.chunked_array(names).combine_chunks().dictionary_encode()
    groups = encoded.indices.to_numpy()
    samples = rows["sample_index"].to_numpy()
    order = np.lexsort((samples, groups))
    sizes = np.bincount(groups, minlength=1)
    group_size = int(sizes[0])
    wrong = samples[order] != np.arange(len(order)) % max(group_size, 1)
    if (sizes != group_size).any() or wrong.any():
        group = int(np.argmax(sizes != group_size)) if (sizes != group_size).any() else int(groups[order][wrong][0])
        raise CorruptDataError(
            f"group {encoded.dictionary[group]} has {sizes[group]} rows, the first group has {group_size}; "
            "all groups need the same samples, each once"
        )
    return order, group_size


def _padded(
    lists: pa.ChunkedArray, dtype: np.dtype[Any], fill: float, side: str
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return ([rows, longest] values, bool mask); the mask's True places take the flat values in row order."""
    if side not in ("left", "right"):
        raise ValueError(f"padding side must be left or right, got {side}")
    lengths = pc.list_value_length(lists).to_numpy()
    longest = int(lengths.max(initial=0))
    places = np.arange(longest)
    mask = places >= longest - lengths[:, None] if side == "left" else places < lengths[:, None]
    values = np.full(mask.shape, fill, dtype)
    values[mask] = pc.list_flatten(lists).to_numpy()
    return values, mask


def _nested(values: list[str], group_size: int) -> list[list[str]]:
    return [values[start : start + group_size] for start in range(0, len(values), max(group_size, 1))]


def _columns(metadata: list[str]) -> dict[str, list[Any]]:
    """Return one list per key that any prompt has; None for the prompts without it."""
    records = [json.loads(text) for text in metadata]
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}
