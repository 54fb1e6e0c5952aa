"""The rewards of a job, together: what gives each row of a shard, or each answer of a rollout, its reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa
import torch

from rollmill.errors import JobError, RewardError
from rollmill.storage.results import RawRollout, RolloutResult
from rollmill.tasks.generation.types import FINISH_ERROR
from rollmill.tasks.rewards.build import Means, build_parts
from rollmill.tasks.rewards.composition import Part, Sum
from rollmill.tasks.rewards.config import RewardConfig
from rollmill.tasks.rewards.fields import distinct_names
from rollmill.tasks.rewards.identity import rewards_fingerprint
from rollmill.tasks.rewards.item import Group, Item, Outcome
from rollmill.tasks.rewards.service import LoadSecret
from rollmill.tasks.rewards.table import groups_of_table, with_outcomes
from rollmill.tasks.rewards.view import Decode


class Scorer:
    """Scores answers by the weighted sum of one or more rewards. Safe to use from several threads at once."""

    def __init__(self, parts: Sequence[Part], fingerprint: str) -> None:
        self._total = Sum(parts)
        self.fingerprint = fingerprint

    def check(self, columns: Sequence[str]) -> None:
        """Raise JobError when a reward needs a column that the prompts, which have `columns`, lack."""
        for index, part in enumerate(self._total.parts):
            missing = part.rater.missing_column(columns)
            if missing is not None:
                raise JobError(
                    f"rewards[{index}] ({part.name}) needs {missing}; "
                    f"the prompts have {', '.join(columns) or 'no other columns'}"
                )

    def score_table(self, table: pa.Table, contents: Mapping[str, Any] | None = None) -> pa.Table:
        """Return the rows of `table` (RESPONSE_SCHEMA) with reward, reward_status, reward_error and reward_parts.

        Rows of a group stand together. A row that the generator could not answer is skipped; one that cannot be scored
        is failed, with the reason and the parts that worked, and costs no other row. `contents` has what prompts were
        before they were rendered (text or chat messages), by prompt_id: without it, rewards that need a conversation
        take the rendered text for the user's.
        """
        groups = groups_of_table(table, contents or {})
        return with_outcomes(table, self._rate_answered(groups))

    def score_rollout(self, raw: RawRollout) -> RolloutResult:
        """Return `raw` with its rewards, NaN where there was no answer or it could not be scored."""
        outcomes = self._rate_answered(_groups_of_rollout(raw))
        rewards = [[_or_nan(outcome) for outcome in group] for group in outcomes]
        values = {field.name: getattr(raw, field.name) for field in fields(RawRollout)}
        shape = raw.responses.shape[:2]
        return RolloutResult(**values, rewards=torch.tensor(rewards, dtype=torch.float32).reshape(shape))

    def _rate_answered(self, groups: Sequence[Group]) -> list[list[Outcome | None]]:
        answered = [[item for item in group if item.finish_reason != FINISH_ERROR] for group in groups]
        rated = [iter(outcomes) for outcomes in self._total.rate(answered)]
        return [
            [None if item.finish_reason == FINISH_ERROR else next(outcomes) for item in group]
            for group, outcomes in zip(groups, rated, strict=True)
        ]


def build_rewards(
    configs: Sequence[RewardConfig], decode: Decode | None = None, load_secret: LoadSecret | None = None
) -> Scorer:
    """Return the scorer of a job's rewards.

    A view with special tokens needs `decode`, from token ids to text; an API key that is kept as a secret needs
    `load_secret`, from its name to the key. Raises JobError, which names the reward, when one cannot be had.
    """
    try:
        distinct_names(configs)
    except ValueError as error:
        raise JobError(f"rewards: {error}") from error
    return Scorer(build_parts(configs, Means(decode=decode, load_secret=load_secret)), rewards_fingerprint(configs))


def _groups_of_rollout(raw: RawRollout) -> list[Group]:
    for name, values in raw.columns.items():
        if len(values) != raw.num_groups:
            raise RewardError(f"the column {name} has {len(values)} values for {raw.num_groups} prompts")
    groups = []
    for b, prompt in enumerate(raw.prompt_texts):
        columns = {name: values[b] for name, values in raw.columns.items()}
        groups.append(
            [
                Item(
                    prompt=prompt,
                    response=text,
                    columns=columns,
                    token_ids=raw.responses[b, g][raw.response_mask[b, g]].tolist(),
                    finish_reason=raw.finish_reasons[b][g],
                )
                for g, text in enumerate(raw.response_texts[b])
            ]
        )
    return groups


def _or_nan(outcome: Outcome | None) -> float:
    return float("nan") if outcome is None or outcome.value is None else outcome.value
