"""Attention of rows on a CPU in one pass: over the keys of a row's prompt, then over its own.

A matrix product does a row's own keys badly: no other row shares them, so few queries meet each key, and a product
would pad all rows to the longest. Every row is computed by the same instructions in the same order, whatever else is in
the batch. Sums are float32, whatever the keys are stored in.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from rollmill.tasks.generation.row_threads import as_array, run_on_rows

PromptPart = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Some rows (n,) int64 and the prompts (n,) int64 of each, side by side where equal; then the prompts' keys and values
(prompts, kv_heads, room, dim) contiguous, and lengths (prompts,) int64."""


def attend_rows(
    query: Tensor,  # (rows, kv_heads, queries, dim)
    new_keys: Tensor,  # (rows, kv_heads, dim) of each row's last token
    new_values: Tensor,
    keys: Tensor,  # (slots, kv_heads, room, dim), contiguous, of query's dtype
    values: Tensor,
    lengths: Tensor,  # (rows,) int64, how many own keys each row has, the new one included
    scale: float,
    parts: Iterable[PromptPart],  # every row in one of them
) -> Tensor:
    """Store each row's new key and value in its last place; return softmax attention over its prompt's and own keys.

    (rows, kv_heads, queries, dim) in query's dtype.
    """
    output = torch.empty(query.shape, dtype=query.dtype)
    states = [as_array(tensor) for tensor in (query, new_keys, new_values, keys, values, lengths)]
    for part in parts:
        arrays = (as_array(tensor) for tensor in part)
        run_on_rows("attend_part", len(part[0]), (*states, np.float32(scale), *arrays, as_array(output)))
    return output
