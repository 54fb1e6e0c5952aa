"""A whole selection: the filters that are asked for, in their order, and then what the format is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from rollmill.errors import JobError
from rollmill.tasks.row_filter import RowFilter
from rollmill.tasks.selection.best import first_answers, threshold, top_k
from rollmill.tasks.selection.config import SelectionConfig, TrainingFormat
from rollmill.tasks.selection.conversations import (
    Conversations,
    dpo_messages,
    expressible,
    kto_messages,
    sft_messages,
)
from rollmill.tasks.selection.duplicates import ExactDuplicates, NearDuplicates
from rollmill.tasks.selection.group_filters import pass_rate_between, varied
from rollmill.tasks.selection.labels import kto
from rollmill.tasks.selection.pairs import dpo_pairs
from rollmill.tasks.selection.row_filters import (
    answered,
    complete,
    matching,
    not_matching,
    satisfying,
    scored,
    within_length,
)
from rollmill.tasks.selection.selected import Selected

Step = Callable[[pa.Table], Selected]

_MESSAGES = {"sft": sft_messages, "dpo": dpo_messages, "kto": kto_messages}


class Selection:
    """Makes training data of one format out of tables of answers, one after the other.

    Each table holds whole groups. What is remembered from table to table are the answers that were kept, where
    duplicates are dropped, so that one of a later table is found. Raises JobError for options that do not suit the
    format.
    """

    def __init__(self, config: SelectionConfig, training_format: TrainingFormat) -> None:
        if config.top is not None and training_format in ("dpo", "kto"):
            raise JobError(f"top is for sft and table; {training_format} needs the worse answers too")
        self._config = config
        self._format = training_format
        self._steps = list(self._filters())

    def select(self, table: pa.Table, conversations: Conversations) -> Selected:
        """Return the records of a table (RESPONSE_SCHEMA) with what they are made of.

        They have the table's columns, and for sft `messages`, for kto `prompt`, `completion` and `label`; for dpo
        those of `dpo_pairs`, and `prompt`, `chosen` and `rejected`.
        """
        found = Selected.all_of(table)
        if self._format != "table":
            found = expressible(table, conversations)
        for step in self._steps:
            found = found.then(step)
        found = found.then(self._shaped)
        if self._format == "table":
            return found
        return found.with_table(_MESSAGES[self._format](found.table, conversations))

    def _filters(self) -> Iterator[Step]:
        config = self._config
        yield lambda table: first_answers(table, config.best_of)
        yield answered
        yield scored
        yield lambda table: pass_rate_between(
            table, config.min_pass_rate, config.max_pass_rate, pass_reward=config.pass_reward
        )
        if config.zero_variance is not None:
            tolerance = config.zero_variance
            yield lambda table: varied(table, tolerance)
        if not config.keep_truncated:
            yield complete
        yield from self._filters_of_answers()
        if not config.keep_duplicates:
            yield ExactDuplicates(config.duplicate_scope).drop
        if config.near_duplicates is not None:
            yield NearDuplicates(config.near_duplicates, config.duplicate_scope).drop

    def _filters_of_answers(self) -> Iterator[Step]:
        config = self._config
        yield lambda table: within_length(table, config.min_tokens, config.max_tokens)
        if (wanted := config.match) is not None:
            yield lambda table: matching(table, wanted)
        if (unwanted := config.no_match) is not None:
            yield lambda table: not_matching(table, unwanted)
        if config.where is not None:
            condition = RowFilter(config.where)
            yield lambda table: satisfying(table, condition)
        yield lambda table: threshold(table, config.min_reward, config.max_reward)

    def _shaped(self, table: pa.Table) -> Selected:
        config = self._config
        if self._format == "dpo":
            return dpo_pairs(table, config.pair_rule)
        if self._format == "kto":
            return kto(table, config.desirable, config.undesirable)
        top = config.top or (1 if self._format == "sft" else None)
        return Selected.all_of(table) if top is None else top_k(table, top)
