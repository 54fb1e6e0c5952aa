"""The numbers of a dataset version's answers, read file by file without their texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rollmill.storage.concurrency import at_once
from rollmill.storage.log import DatasetFile
from rollmill.storage.objects import Objects
from rollmill.storage.parquet import read_committed
from rollmill.storage.schema import FINISH_REASONS, REWARD_FAILED, REWARD_SKIPPED
from rollmill.tasks.figures import PASS_REWARD, reward_stats
from rollmill.tasks.report.histogram import Numbers
from rollmill.tasks.rewards.reasons import count_reasons

COLUMNS = ["prompt_id", "response_token_ids", "logprobs", "finish_reason", "error", "reward", "reward_status",
           "reward_error", "reward_parts"]  # fmt: skip

LIKELY, UNLIKELY = 0.99, 0.01
"""Tokens are called sure from the first probability on, and unlikely below the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResult:
    """What came of one group: its answers, those with a reward, those that pass, and those that failed.

    `failed` are answers that could not be given or not be scored. Without a scored answer there is no mean reward.
    """

    run_id: str
    prompt_id: str
    file: DatasetFile
    answers: int
    scored: int
    passed: int
    failed: int
    mean_reward: float | None

    @property
    def pass_rate(self) -> float | None:
        """The share of the scored answers that pass; None without a scored answer."""
        return self.passed / self.scored if self.scored else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileNumbers:
    """The numbers of one file's rows; arrays have one entry a row, in the file's order.

    stats          `reward_stats` of the rows
    rewards        NaN where there is none
    lengths        sampled tokens
    finish         places in FINISH_REASONS
    mean_logprobs  of an answer's tokens, NaN for an answer without tokens
    logprob_sum, least_logprob, sure, unlikely  of all tokens; the least is 0 when there is no token
    parts          by name of a reward part: (answers that have it, their sum)
    errors         why answers could not be given, counted
    """

    stats: Mapping[str, Any]
    metadata: Mapping[str, str]
    rewards: Numbers
    lengths: Numbers
    finish: NDArray[np.int64]
    mean_logprobs: Numbers
    logprob_sum: float
    least_logprob: float
    sure: int
    unlikely: int
    parts: Mapping[str, tuple[int, float]]
    errors: Mapping[str, int]
    prompts: tuple[PromptResult, ...]


def read_numbers(objects: Objects, files: Sequence[DatasetFile]) -> list[FileNumbers]:
    """Read every file once. Raises ObjectMissingError or CorruptDataError that name the file."""
    return at_once(lambda file: file_numbers(read_committed(objects, file, COLUMNS), file), files)


def file_numbers(table: pa.Table, file: DatasetFile) -> FileNumbers:
    """Return the numbers of one file's rows (COLUMNS)."""
    table = table.combine_chunks()
    lengths = _floats(pc.list_value_length(table["logprobs"]))
    logprobs = _floats(pc.list_flatten(table["logprobs"]))
    sums = np.bincount(pc.list_parent_indices(table["logprobs"]).to_numpy(), weights=logprobs, minlength=table.num_rows)
    rewards = _floats(table["reward"])
    return FileNumbers(
        stats=reward_stats(table),
        metadata={name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()},
        rewards=rewards,
        lengths=lengths,
        finish=pc.index_in(table["finish_reason"], pa.array(FINISH_REASONS)).to_numpy().astype(np.int64),
        mean_logprobs=np.divide(sums, lengths, out=np.full(len(lengths), np.nan), where=lengths > 0),
        logprob_sum=float(logprobs.sum()),
        least_logprob=float(logprobs.min(initial=0.0)),
        sure=int((logprobs >= np.log(LIKELY)).sum()),
        unlikely=int((logprobs < np.log(UNLIKELY)).sum()),
        parts=_parts(table["reward_parts"]),
        errors=count_reasons((reason, 1) for reason in table["error"].drop_null().to_pylist()),
        prompts=tuple(_prompts(table, file, rewards)),
    )


def _prompts(table: pa.Table, file: DatasetFile, rewards: Numbers) -> list[PromptResult]:
    """Return the groups in the file's order; a group is never split between files."""
    ids = pc.dictionary_encode(table["prompt_id"]).combine_chunks()
    names, places = ids.dictionary.to_pylist(), ids.indices.to_numpy()
    has_reward = ~np.isnan(rewards)
    passes = has_reward & (np.nan_to_num(rewards, nan=-np.inf) >= PASS_REWARD)
    failed = np.isin(table["reward_status"].to_numpy(), (REWARD_FAILED, REWARD_SKIPPED))

    def count(which: Any) -> list[float]:
        counted: list[float] = np.bincount(places, weights=which, minlength=len(names)).tolist()
        return counted

    columns = zip(
        names, count(np.ones(len(places))), count(has_reward), count(passes), count(failed),
        count(np.nan_to_num(rewards)), strict=True,
    )  # fmt: skip
    return [
        PromptResult(
            run_id=file.run_id,
            prompt_id=name,
            file=file,
            answers=int(answers),
            scored=int(scored),
            passed=int(passed),
            failed=int(lost),
            mean_reward=total / scored if scored else None,
        )
        for name, answers, scored, passed, lost, total in columns
    ]


def _parts(column: pa.ChunkedArray) -> dict[str, tuple[int, float]]:
    """Return how many answers have each reward part, and its sum; a part that is null or not finite is in neither."""
    flat = pc.list_flatten(column)
    if not len(flat):
        return {}
    table = pa.table({"name": pc.struct_field(flat, "name"), "value": pc.struct_field(flat, "value")})
    table = table.filter(pc.is_finite(table["value"]))
    sums = table.group_by("name", use_threads=False).aggregate([("value", "count"), ("value", "sum")])
    rows = zip(*(sums[name].to_pylist() for name in ("name", "value_count", "value_sum")), strict=True)
    return {name: (times, total or 0.0) for name, times, total in rows}


def _floats(column: Any) -> Numbers:
    """Return a column as float64, null as NaN."""
    return np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
