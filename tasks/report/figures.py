"""The figures of a dataset version, as the page shows them and programs read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollmill.storage.log import LogEntry
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.figures import Figures, total
from rollmill.tasks.report.answers import FileNumbers, PromptResult, read_numbers
from rollmill.tasks.report.histogram import Numbers
from rollmill.tasks.rewards.reasons import count_reasons
from rollmill.tasks.usage import Usage, usage_of_version

_PERCENTILES = (5, 50, 95)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobSummary:
    """The log-probabilities of sampled tokens, in nats.

    mean            over all tokens; `-mean` estimates the sampled distribution's entropy, for the tokens are its draws
    least           of all tokens
    sure, unlikely  shares of tokens that had a probability of at least 0.99, and of less than 0.01
    percentiles     of the answers' own means, by percentage; empty without an answer
    mode            what the log-probabilities are of, as the files say; None when they disagree
    """

    tokens: int
    mean: float | None
    least: float | None
    sure: float | None
    unlikely: float | None
    percentiles: Mapping[int, float]
    mode: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFigures:
    """All that is known of a version's answers, of its `runs`, newest first.

    The arrays have one entry an answer: `rewards` NaN where there is none, `lengths` in tokens, `finish` as places in
    FINISH_REASONS, `mean_logprobs` NaN for an answer without tokens. `parts` is by name of a reward part (answers that
    have it, its mean). `errors` counts why answers could not be given; `figures.reasons` why they could not be scored.
    `metadata` is what all files say of themselves alike.
    """

    version: DatasetVersion
    runs: tuple[LogEntry, ...]
    by_run: tuple[Figures, ...]
    figures: Figures
    prompts: tuple[PromptResult, ...]
    rewards: Numbers
    lengths: Numbers
    finish: Numbers
    mean_logprobs: Numbers
    logprobs: LogprobSummary
    parts: Mapping[str, tuple[int, float]]
    errors: Mapping[str, int]
    metadata: Mapping[str, str]
    usage: Usage

    @property
    def pass_ks(self) -> list[int]:
        """1, 2, 4 and so on to the group size, and the group size: the k of pass@k."""
        size = max(run.group_size for run in self.runs)
        return sorted({2**power for power in range(size.bit_length()) if 2**power <= size} | {size})

    def said(self, name: str) -> Any:
        """Return a value that the files hold as JSON, such as `policy` or `sampling`; None when they do not agree."""
        return json.loads(self.metadata[name]) if name in self.metadata else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values, named as `rollmill show --json` names them."""
        figures = self.figures
        return {
            "store": self.version.objects.url,
            "version": self.version.number,
            "run": self.version.run_id,
            "runs": [run.run_id for run in self.runs],
            "policy_version": self.version.policy_version,
            "created_at": self.version.created_at,
            "complete": self.version.entry.complete,
            "groups": figures.groups,
            "rows": figures.rows,
            "ok": figures.ok,
            "truncated": figures.truncated,
            "failed": figures.failed,
            "scored": figures.scored,
            "unscored": figures.unscored,
            "mean_reward": figures.mean_reward,
            "pass_at": {str(k): figures.pass_at(k) for k in self.pass_ks},
            "response_tokens": figures.response_tokens,
            "mean_response_tokens": mean(self.lengths[self.lengths > 0]),
            **self.usage.to_json(),
            "mean_logprob": self.logprobs.mean,
            "logprob_mode": self.logprobs.mode,
            "reward_parts": {name: value for name, (_, value) in self.parts.items()},
            "errors": dict(self.errors),
            "reasons": dict(figures.reasons),
        }


def version_figures(version: DatasetVersion, window: int = 1, price: float | None = None) -> VersionFigures:
    """Read the answers of the version's `window` newest runs, and add them up.

    A prompt that several runs answered counts once for each. `price` is that of a device hour; None stands for the one
    that the run's job named. Raises InputError for a window below 1, and
    ObjectMissingError or CorruptDataError that name the file.
    """
    runs = version.runs(window)
    by_run = [read_numbers(version.objects, run.files) for run in runs]
    files = [file for numbers in by_run for file in numbers]
    metadata = dict(set.intersection(*(set(file.metadata.items()) for file in files)) if files else ())
    return VersionFigures(
        version=version,
        runs=tuple(runs),
        by_run=tuple(total(file.stats for file in numbers) for numbers in by_run),
        figures=total(file.stats for file in files),
        prompts=tuple(prompt for file in files for prompt in file.prompts),
        rewards=_joined([file.rewards for file in files]),
        lengths=_joined([file.lengths for file in files]),
        finish=_joined([file.finish for file in files]),
        mean_logprobs=_joined([file.mean_logprobs for file in files]),
        logprobs=_logprob_summary(files, metadata.get("logprob_mode")),
        parts=_parts(files),
        errors=count_reasons(item for file in files for item in file.errors.items()),
        metadata=metadata,
        usage=usage_of_version(version, price) if len(runs) == 1 else Usage(price_per_device_hour=price),
    )


def mean(values: Numbers) -> float | None:
    """Return the mean of the values that are not NaN; None when there is none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _joined(arrays: Sequence[Any]) -> Numbers:
    return np.concatenate([np.zeros(0), *arrays])


def _logprob_summary(files: Sequence[FileNumbers], mode: str | None) -> LogprobSummary:
    tokens = int(sum(file.lengths.sum() for file in files))
    means = _joined([file.mean_logprobs for file in files])
    known = means[~np.isnan(means)]
    percentiles = np.percentile(known, _PERCENTILES).tolist() if len(known) else []
    return LogprobSummary(
        tokens=tokens,
        mean=sum(file.logprob_sum for file in files) / tokens if tokens else None,
        least=min(file.least_logprob for file in files) if tokens else None,
        sure=sum(file.sure for file in files) / tokens if tokens else None,
        unlikely=sum(file.unlikely for file in files) / tokens if tokens else None,
        percentiles=dict(zip(_PERCENTILES, percentiles, strict=False)),
        mode=mode,
    )


def _parts(files: Sequence[FileNumbers]) -> dict[str, tuple[int, float]]:
    added: dict[str, tuple[int, float]] = {}
    for file in files:
        for name, (times, value) in file.parts.items():
            before = added.get(name, (0, 0.0))
            added[name] = (before[0] + times, before[1] + value)
    return {name: (times, value / times) for name, (times, value) in added.items() if times}
