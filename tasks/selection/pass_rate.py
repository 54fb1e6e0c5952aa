"""How often the answers to each prompt pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollmill.errors import JobError
from rollmill.tasks.figures import PASS_REWARD, pass_at_k
from rollmill.tasks.selection.groups import Groups, rewards_of


def pass_rates(table: pa.Table, ks: Sequence[int] = (1,), *, pass_reward: float = PASS_REWARD) -> pa.Table:
    """Return one row per group: run_id, prompt_id, num_answers, num_scored, num_passed, and pass@k for each of `ks`.

    An answer passes with a reward of at least `pass_reward`. `pass@k` is the unbiased estimate 1 - C(n - c, k) /
    C(n, k) from the n scored answers of which c pass (Chen et al., "Evaluating Large Language Models Trained on
    Code", 2021, equation 1), and null where fewer than k are scored. Rows are sorted by run_id and prompt_id.
    Raises JobError for k below 1.
    """
    if min(ks, default=1) < 1:
        raise JobError(f"k of pass@k must be at least 1, got {min(ks)}")
    groups, rewards = Groups.of(table), rewards_of(table)
    first = np.zeros(groups.count, np.int64)
    first[groups.numbers] = np.arange(table.num_rows)
    num_scored, num_passed = groups.count_where(~np.isnan(rewards)), groups.count_where(rewards >= pass_reward)
    columns = {
        "num_answers": pa.array(np.bincount(groups.numbers, minlength=groups.count)),
        "num_scored": pa.array(num_scored),
        "num_passed": pa.array(num_passed),
        **{f"pass@{k}": _estimates(num_scored, num_passed, k) for k in ks},
    }
    rates = table.select(["run_id", "prompt_id"]).take(first)
    for name, column in columns.items():
        rates = rates.append_column(name, column)
    return rates.sort_by([("run_id", "ascending"), ("prompt_id", "ascending")])


def _estimates(num_scored: NDArray[np.int64], num_passed: NDArray[np.int64], k: int) -> pa.Array:
    """Return pass@k of each group; it is computed once for each different pair of numbers."""
    pairs, places = np.unique(np.stack([num_scored, num_passed], axis=1), axis=0, return_inverse=True)
    values = [pass_at_k(n, c, k) if n >= k else None for n, c in pairs.tolist()]
    return pa.array(values, pa.float64()).take(pa.array(places.reshape(-1)))
