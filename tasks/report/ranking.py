"""Prompts in order of difficulty, and what changed between two versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollmill.tasks.report.answers import PromptResult


def hardest_first(prompts: Sequence[PromptResult]) -> list[PromptResult]:
    """Return the prompts with a scored answer by pass rate, then mean reward, lowest first; ties by id and run."""
    scored = [prompt for prompt in prompts if prompt.scored]
    return sorted(scored, key=lambda prompt: (*_worth(prompt), prompt.prompt_id, prompt.run_id))


def easiest_first(prompts: Sequence[PromptResult]) -> list[PromptResult]:
    """Return the prompts with a scored answer, highest pass rate and mean reward first; ties by id and run."""
    scored = sorted(hardest_first(prompts), key=lambda prompt: (prompt.prompt_id, prompt.run_id))
    return sorted(scored, key=_worth, reverse=True)


def _worth(prompt: PromptResult) -> tuple[float, float]:
    return prompt.pass_rate or 0.0, prompt.mean_reward or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A prompt in both versions; `pass_rate` and `mean_reward` are by how much they grew."""

    before: PromptResult
    after: PromptResult

    @property
    def pass_rate(self) -> float:
        return (self.after.pass_rate or 0.0) - (self.before.pass_rate or 0.0)

    @property
    def mean_reward(self) -> float:
        return (self.after.mean_reward or 0.0) - (self.before.mean_reward or 0.0)

    @property
    def growth(self) -> tuple[float, float]:
        """What changes are ranked by."""
        return self.pass_rate, self.mean_reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The prompts that both versions have scored answers to, and how many only one of them has."""

    changes: tuple[Change, ...]
    only_before: int
    only_after: int

    @property
    def better(self) -> int:
        return sum(change.growth > (0.0, 0.0) for change in self.changes)

    @property
    def worse(self) -> int:
        return sum(change.growth < (0.0, 0.0) for change in self.changes)

    def gains(self, most: int) -> list[Change]:
        """Return the prompts that grew most, at most so many."""
        grown = [change for change in self.changes if change.growth > (0.0, 0.0)]
        return sorted(grown, key=lambda change: change.growth, reverse=True)[:most]

    def losses(self, most: int) -> list[Change]:
        """Return the prompts that fell most, at most so many."""
        fallen = [change for change in self.changes if change.growth < (0.0, 0.0)]
        return sorted(fallen, key=lambda change: change.growth)[:most]


def compare(before: Sequence[PromptResult], after: Sequence[PromptResult]) -> Comparison:
    """Match prompts by id; of several runs of a version, the newest that has scored answers to the prompt counts."""
    old, new = _by_id(before), _by_id(after)
    both = sorted(old.keys() & new.keys())
    return Comparison(
        changes=tuple(Change(before=old[prompt_id], after=new[prompt_id]) for prompt_id in both),
        only_before=len(old) - len(both),
        only_after=len(new) - len(both),
    )


def _by_id(prompts: Sequence[PromptResult]) -> dict[str, PromptResult]:
    return {prompt.prompt_id: prompt for prompt in reversed(prompts) if prompt.scored}
