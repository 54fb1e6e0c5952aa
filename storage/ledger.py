"""The proof that a run answered every prompt exactly as often as it was asked to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from rollmill.errors import CorruptDataError
from rollmill.storage.concurrency import at_once
from rollmill.storage.parquet import read_committed
from rollmill.storage.plan import Plan, ShardRange
from rollmill.storage.runs import RunStore, ShardMarker
from rollmill.storage.schema import FINISH_REASONS

LEDGER_COLUMNS = ["prompt_id", "sample_index", "finish_reason"]
PROMPTS_STAGE, GENERATE_STAGE = "prompts", "generate"
"""The stages that hold a run's prompts and its unscored answers."""

_MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Rows of a run: `expected` is the sum of `ok` (stop), `truncated` (length) and `failed` (error)."""

    expected: int
    ok: int
    truncated: int
    failed: int


def prove_run(
    runs: RunStore,
    plan: Plan,
    stage: str,
    markers: Mapping[int, ShardMarker],
    shards: Sequence[ShardRange] | None = None,
) -> Ledger:
    """Read what identifies the rows of every shard, or of some `shards`, and return their ledger.

    Prompt ids come from the run's stored prompts where it has them, and from the files themselves otherwise.
    Raises CorruptDataError that names missing shards and missing, doubled and foreign rows.
    """
    where = f"stage {stage} of run {plan.run_id} in {runs.objects.url}"
    chosen = plan.shards if shards is None else shards
    refuse_absent(runs, plan, stage, markers, chosen)
    prompts = runs.markers(PROMPTS_STAGE, [shard.index for shard in chosen])
    tables = at_once(lambda shard: read_committed(runs.objects, markers[shard.index], LEDGER_COLUMNS), chosen)
    prompt_ids = at_once(lambda marker: _prompt_ids(runs, marker), prompts.values())
    return prove_rows(chosen, plan.group_size, tables, dict(zip(prompts, prompt_ids, strict=True)), where)


def refuse_absent(
    runs: RunStore, plan: Plan, stage: str, markers: Mapping[int, ShardMarker], shards: Sequence[ShardRange]
) -> None:
    """Raise CorruptDataError that names the shards without a marker."""
    absent = [shard.index for shard in shards if shard.index not in markers]
    if absent:
        raise CorruptDataError(
            f"stage {stage} of run {plan.run_id} in {runs.objects.url}: shards {_named(absent)} are not committed; "
            "run the job again to finish them"
        )


def prove_rows(
    shards: Sequence[ShardRange],
    group_size: int,
    tables: Sequence[pa.Table],
    prompt_ids: Mapping[int, Sequence[str]],
    where: str,
) -> Ledger:
    """Return the ledger of the shards whose rows are `tables`, in that order; `prompt_ids` by shard, where known."""
    reasons: Counter[str] = Counter()
    ids_by_shard = []
    for shard, rows in zip(shards, tables, strict=True):
        ids = prove_shard(rows, shard, group_size, f"shard {shard.index} of {where}", prompt_ids.get(shard.index))
        ids_by_shard.append(ids)
        reasons.update(rows["finish_reason"].to_pylist())
    _refuse_repeats(ids_by_shard, where)
    return _balanced(reasons, sum(shard.num_prompts for shard in shards) * group_size, where)


def prove_shard(
    rows: pa.Table, shard: ShardRange, group_size: int, where: str, prompt_ids: Sequence[str] | None = None
) -> list[str]:
    """Return the shard's prompt ids, each of which has the samples 0 to `group_size` exactly once.

    `rows` holds at least prompt_id and sample_index. Raises CorruptDataError that names what is amiss.
    """
    seen = Counter(zip(rows["prompt_id"].to_pylist(), rows["sample_index"].to_pylist(), strict=True))
    ids = list(dict.fromkeys(prompt_id for prompt_id, _ in seen) if prompt_ids is None else prompt_ids)
    wanted = {(prompt_id, sample) for prompt_id in ids for sample in range(group_size)}
    amiss = {
        "missing": [row for row in wanted if row not in seen],
        "doubled": [row for row, times in seen.items() if times > 1],
        "not asked for": [row for row in seen if row not in wanted],
    }
    faults = [f"{kind} (prompt, sample) {_named(sorted(found))}" for kind, found in amiss.items() if found]
    if len(ids) != shard.num_prompts:
        faults.append(f"{len(ids)} prompts instead of {shard.num_prompts}")
    if faults:
        raise CorruptDataError(f"{where}: {'; '.join(faults)}")
    return ids


def _prompt_ids(runs: RunStore, marker: ShardMarker) -> list[str]:
    ids: list[str] = read_committed(runs.objects, marker, ["prompt_id"])["prompt_id"].to_pylist()
    return ids


def _refuse_repeats(ids_by_shard: Iterable[list[str]], where: str) -> None:
    counts = Counter(prompt_id for ids in ids_by_shard for prompt_id in ids)
    repeated = sorted(prompt_id for prompt_id, times in counts.items() if times > 1)
    if repeated:
        raise CorruptDataError(f"{where}: prompts {_named(repeated)} are in more than one shard")


def _balanced(reasons: Counter[str], expected: int, where: str) -> Ledger:
    ok, truncated, failed = (reasons.pop(reason, 0) for reason in FINISH_REASONS)
    if reasons or ok + truncated + failed != expected:
        raise CorruptDataError(
            f"{where}: {expected} rows expected, found {ok} ok, {truncated} truncated, {failed} failed"
            + (f" and unknown finish reasons {_named(sorted(reasons))}" if reasons else "")
        )
    return Ledger(expected=expected, ok=ok, truncated=truncated, failed=failed)


def _named(values: Sequence[object]) -> str:
    more = len(values) - _MAX_NAMED
    return ", ".join(str(value) for value in values[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
