"""Filters that look at all answers to a prompt."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rollmill.errors import JobError
from rollmill.tasks.figures import PASS_REWARD
from rollmill.tasks.selection.groups import Groups, rewards_of
from rollmill.tasks.selection.reasons import NOT_SCORED, PASS_RATE_HIGH, PASS_RATE_LOW, ZERO_VARIANCE
from rollmill.tasks.selection.selected import Selected, keep_unless


def pass_rate_between(
    table: pa.Table, minimum: float | None = None, maximum: float | None = None, *, pass_reward: float = PASS_REWARD
) -> Selected:
    """Keep the scored answers to prompts whose pass rate is within the bounds, each of which may be left out.

    The pass rate is the share of a prompt's scored answers with a reward of at least `pass_reward`. Raises JobError
    for a maximum below the minimum, or a bound that is not from 0 to 1.
    """
    for name, bound in (("min_pass_rate", minimum), ("max_pass_rate", maximum)):
        if bound is not None and not 0 <= bound <= 1:
            raise JobError(f"{name} must be from 0 to 1, got {bound:g}")
    if minimum is not None and maximum is not None and maximum < minimum:
        raise JobError(f"max_pass_rate must be at least min_pass_rate, got {maximum:g} < {minimum:g}")
    groups, rewards = Groups.of(table), rewards_of(table)
    num_scored = groups.count_where(~np.isnan(rewards))[groups.numbers]
    num_passed = groups.count_where(rewards >= pass_reward)[groups.numbers]
    faults = [(NOT_SCORED, np.isnan(rewards))]
    rate = num_passed / np.maximum(num_scored, 1)  # a row that has no reward is out already
    faults += [] if minimum is None else [(PASS_RATE_LOW, rate < minimum)]
    faults += [] if maximum is None else [(PASS_RATE_HIGH, rate > maximum)]
    return keep_unless(table, faults)


def varied(table: pa.Table, tolerance: float = 0.0) -> Selected:
    """Keep the scored answers to prompts whose rewards differ by more than `tolerance`.

    Raises JobError for a tolerance below 0.
    """
    if not tolerance >= 0:
        raise JobError(f"zero_variance must be at least 0, got {tolerance:g}")
    groups, rewards = Groups.of(table), rewards_of(table)
    greatest, least = np.full(groups.count, -np.inf), np.full(groups.count, np.inf)
    np.fmax.at(greatest, groups.numbers, rewards)
    np.fmin.at(least, groups.numbers, rewards)
    spread = (greatest - least)[groups.numbers]
    return keep_unless(table, [(NOT_SCORED, np.isnan(rewards)), (ZERO_VARIANCE, spread <= tolerance)])
