"""Which columns a user's function takes: its signature is looked at once, and it gets no more than it asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Accepted:
    """The keywords that a function takes: those it names, those without a default, whether it takes any other, and
    those that are not to be given because they are already."""

    named: frozenset[str]
    required: frozenset[str]
    takes_any: bool
    given: frozenset[str]

    def select(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the entries of `values` that the function takes."""
        return {
            name: value
            for name, value in values.items()
            if name not in self.given and (self.takes_any or name in self.named)
        }


def accepted_keywords(function: Callable[..., Any], *, given: Iterable[str] = ()) -> Accepted:
    """Return which keywords `function` takes besides those that are `given` to it already."""
    given = frozenset(given)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in given]
    keywords = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Accepted(
        named=frozenset(p.name for p in keywords),
        required=frozenset(p.name for p in keywords if p.default is p.empty),
        takes_any=any(p.kind is p.VAR_KEYWORD for p in parameters),
        given=given,
    )
