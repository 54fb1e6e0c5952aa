"""Which columns a user's function takes: its signature is looked at once, and it gets no more than it asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Accepted:
    """The keywords that a function takes: those it names, those without a default, and whether it takes any other."""

    named: frozenset[str]
    required: frozenset[str]
    takes_any: bool

    def select(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the entries of `values` that the function takes."""
        return {name: value for name, value in values.items() if self.takes_any or name in self.named}


def accepted_keywords(function: Callable[..., Any], *, besides: Iterable[str] = ()) -> Accepted:
    """Return which keywords `function` takes, leaving out the names in `besides`."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in set(besides)]
    keywords = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Accepted(
        named=frozenset(p.name for p in keywords),
        required=frozenset(p.name for p in keywords if p.default is p.empty),
        takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )
