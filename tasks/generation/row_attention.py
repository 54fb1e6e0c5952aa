"""Each row's attention to its own tokens on a CPU: one pass over just the keys that the row has.

A matrix product does it badly: a row shares its own keys with no other row, so few queries meet each key, and a product
would pad all rows to the longest. Every row is computed by the same instructions in the same order, whatever else is in
the batch. Sums are float32, whatever the keys are stored in.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rollmill.tasks.generation.row_threads import as_array, run_on_rows


def attend_rows(
    query: Tensor,  # (rows, kv_heads, queries, dim)
    new_keys: Tensor,  # (rows, kv_heads, dim) of each row's last token
    new_values: Tensor,
    keys: Tensor,  # (slots, kv_heads, room, dim), contiguous, of query's dtype
    values: Tensor,
    lengths: Tensor,  # (rows,) int64, how many own keys each row has, the new one included
    scale: float,
    shared: Tensor,  # (lanes, kv_heads, queries, dim) what attention to the keys that rows share came to
    shared_lse: Tensor,  # (lanes, kv_heads, queries) float64, the log-sum-exp of those scores
    row_to_lane: Tensor,  # (rows,) int64
) -> Tensor:
    """Store each row's new key and value in its last place; return softmax attention over its shared and own keys.

    (rows, kv_heads, queries, dim) in query's dtype.
    """
    output = torch.empty(query.shape, dtype=query.dtype)
    stored = (as_array(tensor) for tensor in (query, new_keys, new_values, keys, values))
    lanes = (as_array(shared), shared_lse.contiguous().numpy(), row_to_lane.numpy())
    arguments = (*stored, lengths.numpy(), np.float32(scale), *lanes, as_array(output))
    run_on_rows("attend_part", query.shape[0], arguments)
    return output
