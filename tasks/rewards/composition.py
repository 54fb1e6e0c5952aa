"""Rewards made of other rewards; what each part gave is kept beside the whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rollmill.tasks.rewards.item import Group, Outcome, failure, outcome_of
from rollmill.tasks.rewards.rating import Outcomes, Rater


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One reward of a composition, the name its value is kept under, and its weight."""

    name: str
    rater: Rater
    weight: float = 1.0


class Composition(Rater):
    """Combines several rewards of the same answer. When one of them fails the whole does, and keeps the others."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = list(parts)

    @abstractmethod
    def whole(self, weighted: Sequence[float]) -> float:
        """Return the whole from the parts' values, each already times its weight."""

    def rate(self, groups: Sequence[Group]) -> Outcomes:
        rated = [part.rater.rate(groups) for part in self.parts]
        return [
            [self._combine([outcomes[g][i] for outcomes in rated]) for i in range(len(group))]
            for g, group in enumerate(groups)
        ]

    def missing_column(self, columns: Collection[str]) -> str | None:
        return first_missing(self.parts, columns)

    def _combine(self, outcomes: Sequence[Outcome]) -> Outcome:
        kept: dict[str, float | None] = {}
        reasons, weighted = [], []
        for part, outcome in zip(self.parts, outcomes, strict=True):
            kept.update(kept_of(part, outcome))
            if outcome.value is None:
                reasons.append(f"{part.name}: {outcome.reason}")
            else:
                weighted.append(part.weight * outcome.value)
        return failure("; ".join(reasons), kept) if reasons else outcome_of(self.whole(weighted), kept)


class Sum(Composition):
    """The sum of each part's value times its weight."""

    def whole(self, weighted: Sequence[float]) -> float:
        return sum(weighted)


class Minimum(Composition):
    """The least of each part's value times its weight."""

    def whole(self, weighted: Sequence[float]) -> float:
        return min(weighted)


def kept_of(part: Part, outcome: Outcome) -> dict[str, float | None]:
    """Return what is stored of a part: its value under its name, and its own parts below that."""
    own: dict[str, float | None] = {} if outcome.value is None else {part.name: outcome.value}
    return own | {f"{part.name}/{name}": value for name, value in outcome.parts.items()}


def first_missing(parts: Sequence[Part], columns: Collection[str]) -> str | None:
    """Return what the prompts lack for the first part that lacks something; None when nothing."""
    missing = (part.rater.missing_column(columns) for part in parts)
    return next((what for what in missing if what is not None), None)
