"""The best answers to each prompt."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rollmill.errors import JobError
from rollmill.tasks.selection.groups import Groups, best_first, places_in_groups, rewards_of, samples_of
from rollmill.tasks.selection.reasons import BEYOND_BEST_OF, NOT_BEST, NOT_SCORED, REWARD_HIGH, REWARD_LOW
from rollmill.tasks.selection.selected import Selected, keep, keep_unless


def best_of_n(table: pa.Table, n: int | None = None) -> Selected:
    """Keep the best of the first `n` answers (sample_index below n) to each prompt, of all when `n` is None.

    Of equal rewards the answer with the lowest sample_index is best. Raises JobError for n below 1.
    """
    return first_answers(table, n).then(lambda rows: top_k(rows, 1))


def first_answers(table: pa.Table, n: int | None) -> Selected:
    """Keep the answers with a sample_index below `n`, all when it is None. Raises JobError for n below 1."""
    if n is None:
        return Selected.all_of(table)
    _at_least_one("best_of", n)
    return keep(table, samples_of(table) < n, BEYOND_BEST_OF)


def top_k(table: pa.Table, k: int) -> Selected:
    """Keep the `k` scored answers to each prompt with the greatest rewards; of equal ones those sampled first.

    Raises JobError for k below 1.
    """
    _at_least_one("top", k)
    groups = Groups.of(table)
    places = places_in_groups(groups, best_first(table, groups))
    return keep_unless(table, [(NOT_SCORED, np.isnan(rewards_of(table))), (NOT_BEST, places >= k)])


def threshold(table: pa.Table, min_reward: float | None = None, max_reward: float | None = None) -> Selected:
    """Keep scored answers whose reward is within the bounds, each of which may be left out.

    Raises JobError for a maximum below the minimum.
    """
    if min_reward is not None and max_reward is not None and max_reward < min_reward:
        raise JobError(f"max_reward must be at least min_reward, got {max_reward:g} < {min_reward:g}")
    rewards = rewards_of(table)
    faults = [(NOT_SCORED, np.isnan(rewards))]
    faults += [] if min_reward is None else [(REWARD_LOW, rewards < min_reward)]
    faults += [] if max_reward is None else [(REWARD_HIGH, rewards > max_reward)]
    return keep_unless(table, faults)


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise JobError(f"{name} must be at least 1, got {value}")
