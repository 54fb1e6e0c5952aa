"""What all task runs of our flows have in common."""

from __future__ import annotations

from typing import TypeVar, cast

from prefect.utilities.annotations import quote

MAX_TASK_RUNS = 500
"""Prefect keeps every task run; a run of more shards puts several into one task."""

RETRY_DELAYS = [1.0, 5.0, 20.0]
"""Seconds before the first, second and third retry of a task."""

Value = TypeVar("Value")


def unvisited(value: Value) -> Value:
    """Keep Prefect from searching an argument for futures: it would walk through tokenizers and tables."""
    return cast(Value, quote(value))
