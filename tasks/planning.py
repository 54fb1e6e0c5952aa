"""From a prompt dataset to a plan: how it is cut, what identifies the run, and the prompts of each shard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rollmill.storage.concurrency import at_once
from rollmill.storage.ledger import PROMPTS_STAGE
from rollmill.storage.parquet import read_committed
from rollmill.storage.plan import ShardRange
from rollmill.storage.runs import RunStore
from rollmill.storage.schema import PROMPT_SCHEMA
from rollmill.tasks.generation.backend import TORCH
from rollmill.tasks.generation.config import PolicyConfig, SamplingConfig
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.prompt import Prompt, prompts_from_table
from rollmill.tasks.prompts.rendering import RenderingFingerprint
from rollmill.tasks.prompts.spool import SpooledPrompts


def cut(num_prompts: int, prompts_per_shard: int) -> tuple[ShardRange, ...]:
    """Cut prompts 0 to `num_prompts` into shards; the last one holds what is left."""
    starts = range(0, num_prompts, prompts_per_shard)
    return tuple(
        ShardRange(index=index, start=start, stop=min(start + prompts_per_shard, num_prompts))
        for index, start in enumerate(starts)
    )


def identity_of(
    policy: PolicyConfig,
    policy_fingerprint: str,
    prompts: PromptsConfig,
    content_fingerprint: str,
    rendering: RenderingFingerprint,
    sampling: SamplingConfig,
    backend: str = TORCH,
) -> dict[str, Any]:
    """Return all that decides a run's answers, as JSON values; no credentials, and nothing that only tunes speed.

    A backend that is not named is torch.
    """
    engine = {} if backend == TORCH else {"engine": {"backend": backend}}
    return {
        "policy": {**policy.model_dump(mode="json"), "fingerprint": policy_fingerprint},
        "prompts": {
            **prompts.model_dump(mode="json", exclude={"storage_options"}),
            "content": content_fingerprint,
            "tokenizer": rendering.tokenizer,
            "chat_template": rendering.template,
        },
        "sampling": sampling.model_dump(mode="json", exclude={"group_size"} | _not_asked_for(sampling)),
        **engine,
    }


def _not_asked_for(sampling: SamplingConfig) -> set[str]:
    """Leave out further columns that are off, as if there were none: they change no answer."""
    return {name for name in ("kept_token_ids", "full_logprobs") if not getattr(sampling, name)}


@dataclass(frozen=True, slots=True)
class ShardPrompts:
    """The prompts of a run's shards, each kept with the run, as stage `prompts`, when it is first asked for.

    The plan's identity holds the prompts' fingerprint, so whoever else keeps them keeps the same.
    """

    run: RunStore
    dataset: SpooledPrompts

    def of(self, shard: ShardRange) -> list[Prompt]:
        """Return a shard's prompts. Raises CorruptDataError when what is kept of them was changed."""
        kept = self.run.finished(PROMPTS_STAGE, [shard.index]).get(shard.index)
        table = self._keep(shard) if kept is None else read_committed(self.run.objects, kept)
        return list(prompts_from_table(table))

    def keep(self, shards: Iterable[ShardRange]) -> None:
        """Keep the prompts of these shards, where they are not kept yet."""
        wanted = {shard.index: shard for shard in shards}
        kept = self.run.finished(PROMPTS_STAGE, wanted)
        at_once(self._keep, [shard for index, shard in wanted.items() if index not in kept])

    def _keep(self, shard: ShardRange) -> pa.Table:
        table = self.dataset.table(shard.start, shard.stop)
        self.run.write_shard(PROMPTS_STAGE, shard.index, table, schema=PROMPT_SCHEMA, file_metadata={}, stats={})
        return table
