"""Rewards made of other rewards; what each part gave is kept beside the whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rollmill.tasks.rewards.item import Group, Outcome, failure, outcome_of
from rollmill.tasks.rewards.rating import Outcomes, Rater


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One reward of a composition, the name its value is kept under, and its weight in a sum."""

    name: str
    rater: Rater
    weight: float = 1.0


class Composition(Rater):
    """Combines the outcomes of several rewards of the same answer."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = list(parts)

    def rate(self, groups: Sequence[Group]) -> Outcomes:
        rated = [part.rater.rate(groups) for part in self.parts]
        return [
            [self._combine([outcomes[g][i] for outcomes in rated]) for i in range(len(group))]
            for g, group in enumerate(groups)
        ]

    def missing_column(self, columns: Collection[str]) -> str | None:
        missing = (part.rater.missing_column(columns) for part in self.parts)
        return next((name for name in missing if name is not None), None)

    def _combine(self, outcomes: Sequence[Outcome]) -> Outcome:
        kept: dict[str, float | None] = {}
        for part, outcome in zip(self.parts, outcomes, strict=True):
            if outcome.value is not None:
                kept[part.name] = outcome.value
            kept.update({f"{part.name}/{name}": value for name, value in outcome.parts.items()})
        reasons = [
            f"{part.name}: {outcome.reason}"
            for part, outcome in zip(self.parts, outcomes, strict=True)
            if outcome.value is None
        ]
        if reasons:
            return failure("; ".join(reasons), kept)
        return self.whole([outcome.value for outcome in outcomes if outcome.value is not None], kept)

    def whole(self, values: Sequence[float], kept: dict[str, float | None]) -> Outcome:
        """Return the outcome of an answer whose parts all gave a value: here their weighted sum."""
        total = sum(part.weight * value for part, value in zip(self.parts, values, strict=True))
        return outcome_of(total, kept)
