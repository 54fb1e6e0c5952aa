"""Running a reward over groups of answers so that each answer's failure is its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

import torch

from rollmill.errors import RewardError, RollmillError
from rollmill.tasks.rewards.base import BaseRewardModel
from rollmill.tasks.rewards.item import Group, Item, Outcome, describe, failure, outcome_of
from rollmill.tasks.rewards.rule import RuleReward
from rollmill.tasks.rewards.signature import accepted_keywords

Argument = TypeVar("Argument")
Value = TypeVar("Value")
Outcomes = list[list[Outcome]]


class Rater(ABC):
    """A reward as the scorer uses it: groups in, one outcome an answer out."""

    @abstractmethod
    def rate(self, groups: Sequence[Group]) -> Outcomes:
        """Return one outcome for each item, in the groups' own shape. Nothing that a user's code raises comes through
        but KeyboardInterrupt."""

    def missing_column(self, columns: Collection[str]) -> str | None:  # noqa: ARG002 - many need none
        """Return what the prompts lack for this reward, given the names of their columns; None when nothing."""
        return None


class ItemRater(Rater):
    """Rates one answer at a time."""

    def __init__(self, judge: Callable[[Item], Outcome]) -> None:
        self.judge = judge

    def rate(self, groups: Sequence[Group]) -> Outcomes:
        return [[self.rate_item(item) for item in group] for group in groups]

    def rate_item(self, item: Item) -> Outcome:
        """Return what `judge` makes of one answer, or its failure when it raises."""
        try:
            return self.judge(item)
        except RollmillError as error:
            return failure(str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
            return failure(describe(error))


class RuleRater(ItemRater):
    """Rates by a `RuleReward`."""

    def __init__(self, rule: RuleReward) -> None:
        super().__init__(lambda item: outcome_of(rule.score_item(item)))
        self._rule = rule

    def missing_column(self, columns: Collection[str]) -> str | None:
        return self._rule.missing_column(columns)


class UnavailableError(RewardError):
    """No answer can be judged just now, whichever it is: the process or the service that judges cannot be had."""


class BatchRater(Rater):
    """Rates whole batches; one that raises is halved until those that make it raise stand alone.

    A batch holds groups of one size, and as many as have `answers_per_call` answers together, but at least one. Up to
    `concurrency` batches are rated at once.
    """

    def __init__(self, *, answers_per_call: int | None = None, concurrency: int = 1) -> None:
        self.answers_per_call = answers_per_call
        self._concurrency = concurrency

    def rate(self, groups: Sequence[Group]) -> Outcomes:
        rated = {size: iter(self._rate_of_size(groups, size)) for size in {len(group) for group in groups}}
        return [next(rated[len(group)]) for group in groups]

    def _rate_of_size(self, groups: Sequence[Group], size: int) -> Outcomes:
        chosen = [group for group in groups if len(group) == size]
        if size == 0:
            return [[] for _ in chosen]
        step = len(chosen) if self.answers_per_call is None else max(1, self.answers_per_call // size)
        batches = [chosen[start : start + step] for start in range(0, len(chosen), step)]
        return list(chain.from_iterable(in_threads(self._rate_equal, batches, self._concurrency)))

    @abstractmethod
    def rate_batch(self, groups: Sequence[Group]) -> Outcomes:
        """Rate groups of equal size at once. May raise, and is then called again with parts of the batch."""

    def _rate_equal(self, groups: Sequence[Group]) -> Outcomes:
        try:
            return self.rate_batch(groups)
        except UnavailableError as error:
            return [[failure(str(error)) for _ in group] for group in groups]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
            if len(groups) > 1:
                middle = len(groups) // 2
                return self._rate_equal(groups[:middle]) + self._rate_equal(groups[middle:])
            (group,) = groups
            if len(group) > 1:
                middle = len(group) // 2
                halves = [self._rate_equal([group[:middle]]), self._rate_equal([group[middle:]])]
                return [list(chain.from_iterable(half[0] for half in halves))]
            return [[failure(str(error) if isinstance(error, RollmillError) else describe(error))]]


class ModelRater(BatchRater):
    """Rates by a `BaseRewardModel`, which gets the columns that its signature takes."""

    def __init__(self, model: BaseRewardModel) -> None:
        super().__init__()
        self._model = model
        self._accepted = accepted_keywords(model.score, given=("prompts", "responses"))

    def missing_column(self, columns: Collection[str]) -> str | None:
        return missing_names(self._accepted.required - SERVED_COLUMNS, columns)

    def rate_batch(self, groups: Sequence[Group]) -> Outcomes:
        columns = self._accepted.select(prompt_columns([group[0] for group in groups]))
        served = {name: values for name, values in served_columns(groups).items() if name in self._accepted.named}
        scores = self._model.score(
            [group[0].prompt for group in groups],
            [[item.response for item in group] for group in groups],
            **columns,
            **served,
        )
        return [[outcome_of(value) for value in row] for row in _rows(scores, (len(groups), len(groups[0])))]


SERVED_COLUMNS = frozenset({"response_token_ids", "finish_reasons", "prompt_messages"})


def in_threads(call: Callable[[Argument], Value], arguments: Sequence[Argument], concurrency: int) -> list[Value]:
    """Return what `call` makes of each argument, in their order, with up to `concurrency` calls at once."""
    if concurrency == 1:
        return [call(argument) for argument in arguments]
    with ThreadPoolExecutor(concurrency) as pool:
        futures = [pool.submit(call, argument) for argument in arguments]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def missing_names(required: Collection[str], columns: Collection[str]) -> str | None:
    """Return which of the `required` columns are not among `columns`, in words; None when all are."""
    missing = sorted(set(required) - set(columns))
    return f"the column{'s' * (len(missing) > 1)} {', '.join(missing)}" if missing else None


def served_columns(groups: Sequence[Group]) -> dict[str, list[object]]:
    """Return the columns that rollmill itself serves, each with one entry a group."""
    return {
        "response_token_ids": [[list(item.token_ids or ()) for item in group] for group in groups],
        "finish_reasons": [[item.finish_reason for item in group] for group in groups],
        "prompt_messages": [group[0].messages for group in groups],
    }


def prompt_columns(items: Sequence[Item]) -> dict[str, list[object]]:
    """Return the columns of the items' prompts, each a list with one value an item, None where an item has none."""
    names = dict.fromkeys(chain.from_iterable(item.columns for item in items))
    return {name: [item.columns.get(name) for item in items] for name in names if name not in SERVED_COLUMNS}


def _rows(scores: object, shape: tuple[int, int]) -> list[list[object]]:
    if not isinstance(scores, torch.Tensor):
        try:
            scores = torch.as_tensor(scores)
        except (TypeError, ValueError, RuntimeError) as error:
            raise RewardError(f"score returned {type(scores).__name__}, not a tensor of shape {shape}") from error
    if tuple(scores.shape) != shape:
        raise RewardError(f"score returned shape {tuple(scores.shape)}, expected {shape}")
    if scores.is_complex():
        raise RewardError("score returned complex numbers")
    rows: list[list[object]] = scores.detach().to("cpu").tolist()
    return rows
