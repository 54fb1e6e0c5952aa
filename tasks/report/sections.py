"""What stands in the page beside charts and samples: headline numbers, prompts, failures, facts, as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollmill.tasks.figures import PASS_REWARD, shown
from rollmill.tasks.report.answers import PromptResult
from rollmill.tasks.report.figures import VersionFigures, mean
from rollmill.tasks.report.ranking import Change

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")

HEADLINE_PASS_AT = (1, 8)
"""The k of pass@k that are shown first; the group size is added."""


@dataclass(frozen=True, slots=True)
class Card:
    """A headline number; `before` is the other version's, and `change` by how much this one is greater."""

    name: str
    value: str
    note: str = ""
    before: str = ""
    change: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and what is said under it."""

    name: str
    value: str


def cards(now: VersionFigures, before: VersionFigures | None) -> list[Card]:
    """Return the headline numbers, beside those of another version where there is one."""
    old = _headline(before) if before else {}
    return [
        Card(name, shown(value), note, shown(old[name][0]), _change(value, old[name][0]))
        if name in old and old[name][0] is not None
        else Card(name, shown(value), note)
        for name, (value, note) in _headline(now).items()
    ]


def _headline(version: VersionFigures) -> dict[str, tuple[float | int | None, str]]:
    figures = version.figures
    ks = sorted({k for k in HEADLINE_PASS_AT if k in version.pass_ks} | {version.pass_ks[-1]})
    used = version.usage
    return {
        "mean reward": (figures.mean_reward, f"of {figures.scored:,} scored answers"),
        **{f"pass@{k}": (figures.pass_at(k), f"reward of {PASS_REWARD:g} or more") for k in ks},
        "rows": (figures.rows, f"answers, in {len(version.by_run)} run{'s'[: len(version.by_run) > 1]}"),
        "groups": (figures.groups, "prompts"),
        "tokens": (figures.response_tokens, f"{mean(version.lengths[version.lengths > 0]) or 0:.1f} an answer"),
        "tokens/s": (
            None if used.tokens_per_second is None else round(used.tokens_per_second),
            "not known: the shards' markers do not say"
            if used.tokens_per_second is None
            else f"over {used.seconds:,.0f} s in which shards were generated, by their markers",
        ),
        **{name: (value, remark) for name, value, remark in used.devices()},
        "truncated rows": (figures.truncated, "ended at max_tokens"),
        "failed rows": (figures.failed, "not answered"),
        "unscored rows": (figures.unscored, "their reward failed; not counted as 0"),
    }


def prompt_rows(prompts: Sequence[PromptResult], texts: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
    """Return prompts for a table; `texts` holds their beginnings by run and id."""
    return [
        {
            "run": prompt.run_id,
            "id": prompt.prompt_id,
            "text": texts.get((prompt.run_id, prompt.prompt_id), ""),
            "rate": prompt.pass_rate or 0.0,
            "passes": f"{prompt.passed}/{prompt.scored}",
            "mean": shown(prompt.mean_reward),
        }
        for prompt in prompts
    ]


def change_rows(changes: Sequence[Change], texts: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
    """Return changed prompts for a table."""
    return [
        {
            **prompt_rows([change.after], texts)[0],
            "before": f"{change.before.passed}/{change.before.scored}",
            "before_mean": shown(change.before.mean_reward),
            "change": _change(change.after.pass_rate, change.before.pass_rate),
            "mean_change": _change(change.after.mean_reward, change.before.mean_reward),
        }
        for change in changes
    ]


def logprob_facts(version: VersionFigures) -> list[Fact]:
    """Return the summary of the sampled tokens' log-probabilities."""
    found = version.logprobs
    if found.mean is None or found.least is None or found.sure is None or found.unlikely is None:
        return []
    percentiles = ", ".join(f"{percent} %: {value:.3f}" for percent, value in found.percentiles.items())
    return [
        Fact("mean log-probability", f"{found.mean:.4f} nats a token, of {found.tokens:,} tokens"),
        Fact(
            "entropy, estimated",
            f"{-found.mean:.4f} nats a token: minus the mean, for tokens are draws of what they measure",
        ),
        Fact("answers' means, percentiles", percentiles),
        Fact("sure tokens", f"{found.sure:.1%} had a probability of 0.99 or more"),
        Fact(
            "unlikely tokens",
            f"{found.unlikely:.1%} had less than 0.01; the least log-probability is {found.least:.2f}",
        ),
        Fact("logprob_mode", found.mode or "the runs differ"),
    ]


def origin_facts(version: VersionFigures) -> list[Fact]:
    """Return where the answers come from, as the files and the log say."""
    said = {name: version.said(name) for name in ("policy", "prompts", "sampling", "rewards")}
    facts = [
        Fact("store", version.version.objects.url),
        Fact("version", f"{version.version.number}, published {version.version.created_at}"),
        Fact("runs", ", ".join(run.run_id for run in version.runs)),
        Fact("policy version", str(version.version.policy_version)),
    ]
    return facts + [Fact(name, _listed(value)) for name, value in said.items() if value is not None]


def run_rows(version: VersionFigures) -> list[dict[str, str]]:
    """Return what each run contributes."""
    return [
        {
            "run": run.run_id,
            "policy version": str(run.policy_version),
            "groups": f"{figures.groups:,}",
            "rows": f"{figures.rows:,}",
            "mean reward": shown(figures.mean_reward),
            "pass@1": shown(figures.pass_at(1)),
        }
        for run, figures in zip(version.runs, version.by_run, strict=True)
    ]


def _listed(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_listed(inner)}" for name, inner in value.items() if inner not in (None, {}, []))
    if isinstance(value, list):
        return "; ".join(map(_listed, value))
    text = str(value)
    return f"{text[:12]}…" if _FINGERPRINT.fullmatch(text) else text


def _change(now: float | int | None, before: float | int | None) -> str:
    if now is None or before is None:
        return ""
    grown = now - before
    if grown == 0:
        return "the same"
    return f"{grown:+,}" if isinstance(grown, int) else f"{grown:+.3f}"
