"""The figures of a run: counted a shard at a time, kept with the shard, and added up here and nowhere else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rollmill.storage.schema import REWARD_FAILED, REWARD_OK
from rollmill.tasks.generation.types import FINISH_ERROR, FINISH_LENGTH, FINISH_STOP
from rollmill.tasks.rewards.reasons import count_reasons

PASS_REWARD = 1.0
"""An answer passes when its reward is at least this."""

_SUMS = ("rows", "groups", "ok", "truncated", "failed", "response_tokens", "scored", "unscored", "reward_sum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a run's rows add up to.

    ok, truncated and failed are rows that ended with a stop token, at the length limit, and in an error. `unscored`
    rows are those whose reward could not be computed, and `reasons` says why: times by reason, commonest first.
    Without a scored row, `mean_reward` is None.
    """

    rows: int
    groups: int
    ok: int
    truncated: int
    failed: int
    response_tokens: int
    scored: int
    unscored: int
    mean_reward: float | None
    reasons: Mapping[str, int]
    passes: Mapping[tuple[int, int], int]
    """How many groups have (scored answers, of which so many pass)."""

    def pass_at(self, k: int) -> float | None:
        """The chance that at least one of k answers to a prompt passes, averaged over the prompts with k or more
        scored answers; None when there is none."""
        known = [(times, pass_at_k(n, c, k)) for (n, c), times in self.passes.items() if n >= k]
        total = sum(times for times, _ in known)
        return sum(times * chance for times, chance in known) / total if total else None


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate 1 - C(n - c, k) / C(n, k) from n answers of which c pass.

    Source: Chen et al., "Evaluating Large Language Models Trained on Code", 2021, equation 1.
    Raises ValueError when k is not between 1 and n, or c not between 0 and n.
    """
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"pass@{k} cannot be estimated from {n} answers of which {c} pass")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def answer_stats(table: pa.Table) -> dict[str, Any]:
    """Count a shard's rows (RESPONSE_SCHEMA) by how they ended, its groups and its sampled tokens."""
    reasons = Counter(table["finish_reason"].to_pylist())
    return {
        "rows": table.num_rows,
        "groups": pc.count_distinct(table["prompt_id"]).as_py(),
        "ok": reasons[FINISH_STOP],
        "truncated": reasons[FINISH_LENGTH],
        "failed": reasons[FINISH_ERROR],
        "response_tokens": pc.sum(pc.list_value_length(table["response_token_ids"])).as_py() or 0,
    }


def reward_stats(table: pa.Table) -> dict[str, Any]:
    """Return `answer_stats` with what the rewards of a shard add up to."""
    statuses = Counter(table["reward_status"].to_pylist())
    return {
        **answer_stats(table),
        "scored": statuses[REWARD_OK],
        "unscored": statuses[REWARD_FAILED],
        "reward_sum": pc.sum(table["reward"]).as_py() or 0.0,
        "reasons": count_reasons((reason, 1) for reason in table["reward_error"].drop_null().to_pylist()),
        "passes": {f"{n}:{c}": times for (n, c), times in sorted(_passes(table).items())},
    }


def total(shards: Iterable[Mapping[str, Any]]) -> Figures:
    """Add up the `reward_stats` of shards."""
    sums: Counter[str] = Counter()
    passes: Counter[tuple[int, int]] = Counter()
    reasons: list[tuple[str, int]] = []
    for stats in shards:
        sums.update({name: stats[name] for name in _SUMS})
        reasons.extend(stats["reasons"].items())
        for key, times in stats["passes"].items():
            n, c = map(int, key.split(":"))
            passes[n, c] += times
    reward_sum = sums.pop("reward_sum", 0)
    return Figures(
        **{name: sums[name] for name in _SUMS if name != "reward_sum"},
        mean_reward=reward_sum / sums["scored"] if sums["scored"] else None,
        reasons=count_reasons(reasons),
        passes=passes,
    )


def shown(value: float | int | None) -> str:
    """Return a number as people read it."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if 0 < abs(value) < 0.001:
        return f"{value:.1g}"
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:,.0f}"


def _passes(table: pa.Table) -> Counter[tuple[int, int]]:
    rewards: dict[str, list[float]] = {}
    for prompt_id, reward in zip(table["prompt_id"].to_pylist(), table["reward"].to_pylist(), strict=True):
        group = rewards.setdefault(prompt_id, [])
        if reward is not None:
            group.append(reward)
    return Counter((len(group), sum(reward >= PASS_REWARD for reward in group)) for group in rewards.values())
