"""What came of a run, for people and programs: computed once, printed, stored as an artifact, or given as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.compute as pc

from rollmill.storage.runs import RunStore
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.figures import PASS_REWARD, Figures, shown, total
from rollmill.tasks.generation.types import FINISH_STOP
from rollmill.tasks.rewards.reasons import commonest
from rollmill.tasks.shards import ShardRef
from rollmill.tasks.usage import Usage

PASS_AT = (1, 8)
"""The k of the reported pass@k."""

_SHARDS_SEARCHED_FOR_SAMPLES = 16
_SAMPLE_COLUMNS = ["prompt_id", "sample_index", "prompt_text", "response_text", "reward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One stored answer, to look at."""

    prompt_id: str
    sample_index: int
    prompt_text: str
    response_text: str
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A finished run and the dataset version that it became.

    `new_rows`, `new_tokens` and `seconds` are of this start of the run alone: a start that finds everything done has
    none. `usage` is of all the run's shards, whoever made them. `samples` are an answer that passes and one that does
    not, as far as the run has them.
    """

    run_id: str
    store: str
    version: int
    policy_version: int
    num_shards: int
    figures: Figures
    usage: Usage
    new_rows: int
    new_tokens: int
    seconds: float
    samples: tuple[Sample, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        values = asdict(self)
        values["figures"]["passes"] = [[n, c, times] for (n, c), times in sorted(self.figures.passes.items())]
        values["figures"]["pass_at"] = {str(k): self.figures.pass_at(k) for k in PASS_AT}
        del values["usage"]
        return {**values, **self.usage.to_json()}

    def lines(self) -> list[tuple[str, str]]:
        """Return (name, value) pairs of what people look at first."""
        figures = self.figures
        return [
            ("rows", f"{figures.rows} in {figures.groups} groups, {self.num_shards} shards"),
            ("tokens", f"{figures.response_tokens:,}, {_mean_tokens(figures):.1f} an answer"),
            ("tokens/s", self._speed()),
            *((name, f"{shown(value)}, {remark}") for name, value, remark in self.usage.devices()),
            ("mean reward", _number(figures.mean_reward)),
            *((f"pass@{k}", _number(figures.pass_at(k))) for k in PASS_AT),
            ("failed rows", f"{figures.failed} not answered, {figures.unscored} not scored"),
            *(("not scored", reason) for reason in commonest(figures.reasons)),
            ("truncated rows", f"{figures.truncated} ended at max_tokens"),
            ("dataset version", f"{self.version} of {self.store}, policy version {self.policy_version}"),
        ]

    def to_text(self) -> str:
        """Return the report for a terminal."""
        width = max(len(name) for name, _ in self.lines())
        figures = "\n".join(f"{name:<{width}}  {value}" for name, value in self.lines())
        samples = "\n".join(f"\n{_verdict(sample)}\n{_indented(sample)}" for sample in self.samples)
        return f"{figures}\n{samples}\n\nnext\n{self._next_steps()}"

    def to_markdown(self) -> str:
        """Return the report for the Prefect UI."""
        rows = "\n".join(f"| {name} | {value} |" for name, value in self.lines())
        samples = "\n\n".join(f"**{_verdict(sample)}**\n\n```text\n{_indented(sample)}\n```" for sample in self.samples)
        page = f"All of it as a page, with charts and every prompt's answers:\n\n```\n{self._page_command()}\n```"
        return f"# {self.run_id}\n\n| | |\n|---|---|\n{rows}\n\n{page}\n\n{samples}\n"

    def _speed(self) -> str:
        if self.usage.tokens_per_second is None:
            return "not known: the shards' markers do not say"
        done_before = "" if self.new_tokens else ", before: nothing was left to generate"
        return f"{self.usage.tokens_per_second:,.0f} over {self.usage.seconds:,.0f} s{done_before}"

    def _next_steps(self) -> str:
        return (
            f"  rollmill show {self.store}      the rows, as a table and samples\n"
            f"  {self._page_command()}      charts, and its answers to browse\n"
            f"  rollmill verify {self.store}    markers, checksums, schema, ledger\n"
            f"  python -c 'import rollmill; print(rollmill.RolloutStore(\"{self.store}\").latest().read().to_pandas())'"
        )

    def _page_command(self) -> str:
        return f"rollmill report {self.store} --version {self.version} --out report.html"


def build_report(
    run: RunStore,
    version: DatasetVersion,
    shards: Sequence[ShardRef],
    *,
    usage: Usage,
    new_rows: int,
    new_tokens: int,
    seconds: float,
) -> RunReport:
    """Add up the shards of a published run and look for samples in it."""
    return RunReport(
        run_id=run.run_id,
        store=run.objects.url,
        version=version.number,
        policy_version=version.policy_version,
        num_shards=len(shards),
        figures=total(shard.stats for shard in shards),
        usage=usage,
        new_rows=new_rows,
        new_tokens=new_tokens,
        seconds=seconds,
        samples=_samples(run, shards),
    )


def shard_table(shards: Sequence[ShardRef]) -> list[dict[str, Any]]:
    """Return one row a shard, for the table artifact."""
    return [_shard_row(shard) for shard in shards]


def _shard_row(shard: ShardRef) -> dict[str, Any]:
    stats: Mapping[str, Any] = shard.stats
    return {
        "shard": shard.index,
        "rows": stats["rows"],
        "truncated": stats["truncated"],
        "failed": stats["failed"],
        "unscored": stats["unscored"],
        "commonest reason": next(iter(commonest(stats["reasons"], 1)), None),
        "mean reward": round(stats["reward_sum"] / stats["scored"], 4) if stats["scored"] else None,
        "tokens": stats["response_tokens"],
        "bytes": shard.num_bytes,
    }


def _samples(run: RunStore, shards: Sequence[ShardRef]) -> tuple[Sample, ...]:
    """Return an answer that passes and one that does not from the first shards that have them."""
    good: Sample | None = None
    bad: Sample | None = None
    for shard in shards[:_SHARDS_SEARCHED_FOR_SAMPLES]:
        rows = run.read_shard(shard.stage, shard.index, [*_SAMPLE_COLUMNS, "finish_reason"])
        scored = rows.filter(pc.is_valid(rows["reward"])).to_pylist()
        good = good or _first([row for row in scored if row["reward"] >= PASS_REWARD])
        bad = bad or _first([row for row in scored if row["reward"] < PASS_REWARD])
        if good and bad:
            break
    return tuple(sample for sample in (good, bad) if sample is not None)


def _first(rows: list[dict[str, Any]]) -> Sample | None:
    """Return the first row that came to an end by itself, or else the first."""
    for row in sorted(rows, key=lambda row: row["finish_reason"] != FINISH_STOP):
        return Sample(**{name: row[name] for name in _SAMPLE_COLUMNS})
    return None


def _verdict(sample: Sample) -> str:
    kind = "a good answer" if sample.reward >= PASS_REWARD else "a bad answer"
    return f"{kind} (reward {sample.reward:g}, prompt {sample.prompt_id}, sample {sample.sample_index})"


def _indented(sample: Sample) -> str:
    text = f"{sample.prompt_text.strip()}\n{sample.response_text.strip()}"
    return "\n".join(f"  {line}" for line in text.splitlines())


def _mean_tokens(figures: Figures) -> float:
    """Return the mean length of an answer; what could not be answered has none."""
    return figures.response_tokens / max(1, figures.rows - figures.failed)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
