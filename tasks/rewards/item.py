"""What a reward looks at, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

MAX_REASON_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One answer with all that a reward may see of it.

    `columns` are its prompt's other columns; `messages` is the conversation that the prompt was before the policy's
    chat template, None when it was none or is not known.
    """

    prompt: str
    response: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    token_ids: Sequence[int] | None = None
    finish_reason: str = "stop"
    messages: Sequence[Mapping[str, Any]] | None = None


Group = list[Item]
"""The answers to one prompt that are scored together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What scoring one answer gave: a finite `value`, or no value and the `reason`.

    `parts` are the named values that the reward wants kept beside its own; None stands for one that is not a number.
    """

    value: float | None = None
    reason: str | None = None
    parts: Mapping[str, float | None] = field(default_factory=dict)


def failure(reason: str, parts: Mapping[str, float | None] | None = None) -> Outcome:
    """Return an outcome without a value, its reason cut to a bounded length and put on one line."""
    return Outcome(reason=shorten(reason), parts=parts or {})


def shorten(text: str) -> str:
    """Return `text` on one line of at most MAX_REASON_CHARACTERS characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARACTERS else line[: MAX_REASON_CHARACTERS - 1] + "…"


def describe(error: BaseException) -> str:
    """Return an exception as its type and message, even when its own message cannot be made."""
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001 - a user's exception class may fail in any way
        message = f"its message cannot be shown: {type(broken).__name__}"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def outcome_of(value: object, parts: Mapping[str, float | None] | None = None) -> Outcome:
    """Return what a scorer's return value means: a finite number is a value, anything else a failure by name."""
    number = as_number(value)
    if number is None:
        shown = "None" if value is None else f"{_show(value)}, not a number"
        return failure(f"the reward returned {shown}", parts)
    if not math.isfinite(number):
        return failure(f"the reward returned {number}, not a finite number", parts)
    return Outcome(value=number, parts=parts or {})


def as_number(value: object) -> float | None:
    """Return a Python, numpy or one-element tensor number as a float, None for anything else."""
    if isinstance(value, (Tensor, np.ndarray)):
        if math.prod(value.shape) != 1:
            return None
        value = value.item()
    if isinstance(value, np.bool_):
        value = bool(value)
    if not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def finite_or_none(value: object) -> float | None:
    """Return a finite number as a float, None for anything else."""
    number = as_number(value)
    return number if number is not None and math.isfinite(number) else None


def _show(value: object) -> str:
    kind = type(value).__name__
    return f"{kind} {value[:60]!r}" if isinstance(value, str) else kind
