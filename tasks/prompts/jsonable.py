"""Turning what datasets hold into plain JSON values."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np


class BadValueError(ValueError):
    """A value of a row cannot be used; the message names the column and the place in it."""


def to_jsonable(value: object, path: str) -> Any:
    """Return `value` as JSON values; `path` names it in errors.

    Numbers, text, lists and mappings keep their form. Dates and times become ISO 8601 text, a Decimal its exact
    text, bytes their UTF-8 text, and NaN null, for that is how pandas writes a missing number. Anything else raises
    BadValueError.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return checked_text(value, path)
    if isinstance(value, float):
        return _number(value, path)
    if isinstance(value, Mapping):
        return {_key(key, path): to_jsonable(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item, f"{path}[{index}]") for index, item in enumerate(value)]
    return _special(value, path)


def checked_text(text: str, path: str) -> str:
    """Return `text` when UTF-8 can hold it; a half of a surrogate pair, or an undecodable byte, raises."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadValueError(f"{path} is not valid UTF-8 text at character {error.start}") from error
    return str(text)


def _special(value: object, path: str) -> Any:
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return _numpy(value, path)
    if isinstance(value, (bytes, bytearray)):
        return _decoded(bytes(value), path)
    raise BadValueError(f"{path} is a {type(value).__name__}, which has no JSON form")


def _numpy(value: np.ndarray[Any, Any] | np.generic, path: str) -> Any:
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return None if np.isnat(value) else str(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "mM":
        return [_numpy(item, path) for item in value]
    plain = value.tolist()
    if isinstance(plain, np.generic):
        raise BadValueError(f"{path} is a numpy {value.dtype}, which has no JSON form")
    return to_jsonable(plain, path)


def _number(value: float, path: str) -> float | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        raise BadValueError(f"{path} is infinite, which JSON cannot hold")
    return float(value)


def _decoded(value: bytes, path: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadValueError(f"{path} holds bytes that are not UTF-8 text") from error


def _key(key: object, path: str) -> str:
    if isinstance(key, str):
        return checked_text(key, f"a key of {path}")
    if isinstance(key, int):
        return str(key)
    raise BadValueError(f"{path} has a key of type {type(key).__name__}; JSON keys are text")
