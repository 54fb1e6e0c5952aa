"""The work of scoring one shard: read its answers, score those that are wanted, store the rows with rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from rollmill.storage.ledger import PROMPTS_STAGE
from rollmill.storage.parquet import CommittedFile, read_committed
from rollmill.storage.runs import RunStore, ShardMarker
from rollmill.storage.schema import RESPONSE_SCHEMA, REWARD_FAILED
from rollmill.tasks.figures import reward_stats
from rollmill.tasks.prompts.prompt import prompts_from_table
from rollmill.tasks.rewards.scoring import Scorer
from rollmill.tasks.row_filter import RowFilter
from rollmill.tasks.shards import GENERATE_STAGE, ShardRef, reference

FAILED_ROWS = f"reward_status == '{REWARD_FAILED}'"
"""The condition that chooses answers whose reward could not be computed."""

REWARDS, OTHER_REWARDS = "rewards", "other_rewards"
RESCORED_FROM, RESCORED_WHERE = "rescored_from", "rescored_where"
SCORING_METADATA = (REWARDS, OTHER_REWARDS, RESCORED_FROM, RESCORED_WHERE)
"""What a scored file says of its rewards: what they are; those of rows that kept an earlier version's, where they are
others; the version whose answers were scored again; and which of its rows, where not all."""


def score_stage(scorer: Scorer) -> str:
    """Return the stage that holds a run's answers scored by these rewards."""
    return f"score-{scorer.fingerprint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """All that scoring a shard's answers takes.

    files  where each shard's rows are; a shard that is not there is read from the run's generated ones
    where  which rows are scored, None for all; the others keep what they have
    marks  what the new files say of their scoring (SCORING_METADATA), beside what the old ones said of the answers
    again  the generation of each shard of this stage whose failed rewards are to be computed once more
    """

    run: RunStore
    scorer: Scorer
    stage: str
    marks: Mapping[str, str]
    files: Mapping[int, CommittedFile] = field(default_factory=dict)
    where: RowFilter | None = None
    again: Mapping[int, int] = field(default_factory=dict)


def score_shard(work: Scoring, index: int) -> ShardRef:
    """Score a shard's stored answers and store the rows again with rewards; what is stored is not scored again.

    But for a shard of `work.again`: there, the rewards that failed are computed once more, and a new commit takes the
    place of the old when fewer fail now. Only the four reward columns change: ids, log-probabilities and all else stay
    as they are. An answer that cannot be scored is a row with reward_status failed that says why.
    """
    done = work.run.finished(work.stage, [index]).get(index)
    if done is None:
        rows = _rows(work, index)
        done = _store(work, index, _scored(work, index, rows, _chosen(work, rows)))
    elif work.again.get(index) == done.generation:
        done = _score_failed(work, index, done)
    return reference(work.stage, done)


def failed_shards(markers: Mapping[int, ShardMarker]) -> dict[int, int]:
    """Return the generation of each shard that has rewards that failed."""
    return {index: marker.generation for index, marker in markers.items() if marker.stats["unscored"]}


def _score_failed(work: Scoring, index: int, done: ShardMarker) -> ShardMarker:
    rows = read_committed(work.run.objects, done)
    wanted = np.array(RowFilter(FAILED_ROWS).chosen(rows))
    if work.where is not None:
        wanted &= _chosen(work, _rows(work, index))
    table = _scored(work, index, rows, wanted)
    if reward_stats(table)["unscored"] >= done.stats["unscored"]:
        return done
    return _store(work, index, table, replaces=done)


def _store(work: Scoring, index: int, table: pa.Table, replaces: ShardMarker | None = None) -> ShardMarker:
    said = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    kept = {name: value for name, value in said.items() if name not in SCORING_METADATA}
    return work.run.write_shard(
        work.stage,
        index,
        table,
        schema=RESPONSE_SCHEMA,
        file_metadata={**kept, **work.marks},
        stats=reward_stats(table),
        replaces=replaces,
    )


def _rows(work: Scoring, index: int) -> pa.Table:
    if index in work.files:
        return read_committed(work.run.objects, work.files[index])
    return work.run.read_shard(GENERATE_STAGE, index)


def _chosen(work: Scoring, rows: pa.Table) -> Any:
    return np.ones(rows.num_rows, dtype=bool) if work.where is None else np.array(work.where.chosen(rows), dtype=bool)


def _scored(work: Scoring, index: int, rows: pa.Table, chosen: Any) -> pa.Table:
    """Return the rows, in their order, with new rewards for those that are chosen."""
    contents = _contents(work.run, index)
    if chosen.all():
        return work.scorer.score_table(rows, contents)
    places, others = np.flatnonzero(chosen), np.flatnonzero(~chosen)
    scored = work.scorer.score_table(rows.take(places), contents)
    order = np.argsort(np.concatenate([others, places]))
    return pa.concat_tables([rows.take(others), scored]).take(order)


def _contents(run: RunStore, index: int) -> dict[str, Any]:
    """Return what the shard's prompts were before they were rendered, by id; nothing where the run has not kept it."""
    if run.marker(PROMPTS_STAGE, index) is None:
        return {}
    return {prompt.prompt_id: prompt.content for prompt in prompts_from_table(run.read_shard(PROMPTS_STAGE, index))}
