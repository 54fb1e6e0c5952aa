"""From dataset versions to a report: read, add up, draw, choose what is shown, render."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollmill.errors import InputError
from rollmill.storage.schema import FINISH_REASONS
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.report.answers import PromptResult
from rollmill.tasks.report.charts import Chart, bars, check_charts, rows
from rollmill.tasks.report.figures import VersionFigures, version_figures
from rollmill.tasks.report.histogram import Numbers, histogram
from rollmill.tasks.report.naming import name_groups
from rollmill.tasks.report.page import render
from rollmill.tasks.report.ranking import Comparison, compare, easiest_first, hardest_first
from rollmill.tasks.report.samples import MAX_ANSWERS, Samples, choose, read_samples
from rollmill.tasks.report.sections import (
    Card,
    cards,
    change_rows,
    logprob_facts,
    origin_facts,
    prompt_rows,
    run_rows,
)
from rollmill.tasks.report.segments import find_special_tokens

NUM_LISTED = 10
"""Prompts in each list of easiest, hardest, most gained and most lost."""

_FINISH_NAMES = {"stop": "stopped by itself", "length": "cut at max_tokens", "error": "failed"}


@dataclass(frozen=True, slots=True)
class Report:
    """A page, the figures that it shows as JSON values, and its headline numbers as it says them."""

    html: str
    figures: dict[str, Any]
    cards: tuple[Card, ...]


def build_report(
    version: DatasetVersion,
    *,
    before: DatasetVersion | None = None,
    window: int = 1,
    max_answers: int = MAX_ANSWERS,
    tokenizer: str | None = None,
    price: float | None = None,
) -> Report:
    """Return the report of the version's `window` newest runs, compared with those of `before` where it is given.

    The page holds the texts of at most `max_answers` answers, and says so. Its figures are of all answers. `tokenizer`
    names where the policy's tokenizer is, when it is not where the run had it. `price` is that of a device hour, in
    place of the one that the run's job named. Raises InputError when matplotlib is missing or a number is out of
    bounds, PolicyError for a tokenizer that is not there, and ObjectMissingError or CorruptDataError for files.
    """
    check_charts()
    if max_answers < 1:
        raise InputError(f"--max-answers must be at least 1, got {max_answers}")
    now = version_figures(version, window, price)
    old = version_figures(before, window, price) if before else None
    comparison = compare(old.prompts, now.prompts) if old else None
    values = _values(now, old, comparison, max_answers, tokenizer)
    return Report(render(values), values["figures"], tuple(values["cards"]))


def _values(
    now: VersionFigures,
    old: VersionFigures | None,
    comparison: Comparison | None,
    max_answers: int,
    tokenizer: str | None,
) -> dict[str, Any]:
    """Return what the template is filled with."""
    hardest, easiest = (ranked(now.prompts)[:NUM_LISTED] for ranked in (hardest_first, easiest_first))
    gains, losses = (comparison.gains(NUM_LISTED), comparison.losses(NUM_LISTED)) if comparison else ([], [])
    listed = [*hardest, *easiest, *(change.after for change in (*gains, *losses))]
    shown = _shown(now, max_answers if old is None else max_answers // 2 or 1, listed, tokenizer)
    ids = {group["id"] for group in shown["groups"]}
    versions = [shown]
    if old is not None:
        same = [prompt for prompt in old.prompts if prompt.prompt_id in ids]
        versions.append(_shown(old, max_answers - shown["answers"], same, tokenizer))
    name_groups([group for each in versions for group in each["groups"]])
    texts = {(group["run"], group["id"]): group["name"] for group in shown["groups"]}
    names = [f"version {figures.version.number}" for figures in (now, old) if figures]
    return {
        "figures": {**now.to_json(), "compared_with": old.to_json() if old else None},
        "names": names,
        "complete": now.version.entry.complete,
        "cards": cards(now, old),
        "charts": _charts(now, old, comparison, names if old else []),
        "hardest": prompt_rows(hardest, texts),
        "easiest": prompt_rows(easiest, texts),
        "comparison": comparison,
        "same_prompts": old is None or _content(now) == _content(old),
        "gains": change_rows(gains, texts),
        "losses": change_rows(losses, texts),
        "failures": [(name, counts) for name, counts in _failures(now) if counts],
        "logprobs": [(name, logprob_facts(each)) for name, each in zip(names, filter(None, (now, old)), strict=True)],
        "origins": [(name, origin_facts(each)) for name, each in zip(names, filter(None, (now, old)), strict=True)],
        "runs": run_rows(now) if len(now.runs) > 1 else [],
        "parts": [(name, times, value) for name, (times, value) in now.parts.items()],
        "versions": versions,
    }


def _charts(
    now: VersionFigures, old: VersionFigures | None, comparison: Comparison | None, names: Sequence[str]
) -> list[Chart]:
    both = [now, *([old] if old else [])]
    rates = [np.array([_rate(prompt) for prompt in each.prompts]) for each in both]
    finish = [[int((each.finish == place).sum()) for place in range(len(FINISH_REASONS))] for each in both]
    lengths = [each.lengths[each.lengths > 0] for each in both] if old else _by_finish(now)
    length_names = names or [_FINISH_NAMES[reason] for reason in FINISH_REASONS[:2]]
    drawn = [
        bars("Reward", histogram([each.rewards for each in both]), unit="reward", counted="answers", names=names),
        bars("Pass rate by prompt", histogram(rates, max_bins=10), counted="prompts", names=names,
             unit="share of a prompt's answers that pass"),
        bars("Length", histogram(lengths), unit="tokens of an answer", counted="answers", names=length_names,
             stacked=old is None),
        rows("How answers ended", [_FINISH_NAMES[reason] for reason in FINISH_REASONS], finish, names),
        bars("Log-probability", histogram([each.mean_logprobs for each in both]), counted="answers", names=names,
             unit="mean of an answer's tokens, nats"),
    ]  # fmt: skip
    if comparison:
        changes = histogram([np.array([change.pass_rate for change in comparison.changes])])
        drawn.append(
            bars("Change by prompt", changes, unit=f"pass rate, {names[0]} minus {names[1]}", counted="prompts")
        )
    return drawn


def _by_finish(version: VersionFigures) -> list[Numbers]:
    return [version.lengths[(version.finish == place) & (version.lengths > 0)] for place in range(2)]


def _rate(prompt: PromptResult) -> float:
    return float("nan") if prompt.pass_rate is None else prompt.pass_rate


def _failures(version: VersionFigures) -> list[tuple[str, list[tuple[str, int]]]]:
    return [
        ("not answered", list(version.errors.items())),
        ("not scored", list(version.figures.reasons.items())),
    ]


def _content(version: VersionFigures) -> Any:
    return (version.said("prompts") or {}).get("content")


def _shown(
    version: VersionFigures, max_answers: int, first: Sequence[PromptResult], tokenizer: str | None
) -> dict[str, Any]:
    """Return the shown samples of a version, with how many of how many they are."""
    tokens = find_special_tokens(version.said("policy"), (version.said("prompts") or {}).get("tokenizer"), tokenizer)
    chosen = choose(version.prompts, max_answers, first)
    found: Samples = read_samples(version.version.objects, chosen, tokens)
    return {
        "name": f"version {version.version.number}",
        "groups": found.groups,
        "prompts": len(found.groups),
        "of_prompts": len(version.prompts),
        "answers": found.answers,
        "of_answers": version.figures.rows,
        "cut_texts": found.cut_texts,
        "no_special_tokens": tokens.absent,
    }
