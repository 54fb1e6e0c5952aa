"""Answers labelled desirable or undesirable, one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rollmill.errors import JobError
from rollmill.tasks.figures import PASS_REWARD
from rollmill.tasks.selection.groups import rewards_of
from rollmill.tasks.selection.reasons import NEITHER
from rollmill.tasks.selection.row_filters import scored
from rollmill.tasks.selection.selected import Selected, keep


def kto(table: pa.Table, desirable: float = PASS_REWARD, undesirable: float | None = None) -> Selected:
    """Return the scored answers with a column `label`: true for a reward of at least `desirable`, false for one below
    `undesirable`, which is the same bound when it is None; answers between the two are dropped.

    Raises JobError when `undesirable` is above `desirable`.
    """
    below = desirable if undesirable is None else undesirable
    if below > desirable:
        raise JobError(f"undesirable must be at most desirable, got {below:g} > {desirable:g}")
    return scored(table).then(lambda rows: _labelled(rows, desirable, below))


def _labelled(table: pa.Table, desirable: float, below: float) -> Selected:
    rewards = rewards_of(table)
    labelled = table.append_column("label", pa.array(rewards >= desirable))
    return keep(labelled, np.logical_or(rewards >= desirable, rewards < below), NEITHER)
