"""From a prompt dataset to a stored plan: the source is read once, and every shard's prompts are kept with the run."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from rollmill.storage.concurrency import at_once
from rollmill.storage.ledger import PROMPTS_STAGE
from rollmill.storage.plan import Plan, ShardRange
from rollmill.storage.runs import RunStore
from rollmill.storage.schema import PROMPT_SCHEMA
from rollmill.tasks.generation.backend import TORCH
from rollmill.tasks.generation.config import PolicyConfig, SamplingConfig
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.prompt import Prompt, prompts_to_table
from rollmill.tasks.prompts.rendering import RenderingFingerprint

_PROMPTS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledPrompts:
    """A prompt dataset that was read once: a table of PROMPT_SCHEMA in a mapped file, and a sha256 of its content."""

    table: pa.Table
    fingerprint: str

    @property
    def num_prompts(self) -> int:
        return int(self.table.num_rows)

    @property
    def num_unusable(self) -> int:
        """Prompts that become error rows because the dataset's row could not be used."""
        return int(self.table.num_rows - self.table["error"].null_count)


@contextlib.contextmanager
def spooled(prompts: Iterable[Prompt]) -> Iterator[SpooledPrompts]:
    """Read `prompts` to their end into a temporary file, in bounded memory; the table lasts as long as the block."""
    with tempfile.TemporaryDirectory(prefix="rollmill-prompts-") as folder:
        path = Path(folder) / "prompts.arrow"
        fingerprint = _spool(iter(prompts), path)
        with pa.memory_map(str(path)) as source:
            yield SpooledPrompts(table=pa.ipc.open_file(source).read_all(), fingerprint=fingerprint)


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


def store_prompts(run: RunStore, plan: Plan, prompts: SpooledPrompts) -> None:
    """Keep the prompts of every shard of an opened plan, as stage `prompts` of the run.

    The plan's identity holds the prompts' fingerprint, so whoever else stores them stores the same.
    """
    kept = run.finished(PROMPTS_STAGE, [shard.index for shard in plan.shards])

    def keep(shard: ShardRange) -> None:
        run.write_shard(
            PROMPTS_STAGE,
            shard.index,
            prompts.table.slice(shard.start, shard.num_prompts),
            schema=PROMPT_SCHEMA,
            file_metadata={},
            stats={},
        )

    at_once(keep, [shard for shard in plan.shards if shard.index not in kept])


def _spool(prompts: Iterator[Prompt], path: Path) -> str:
    digest = hashlib.sha256()
    with pa.ipc.new_file(str(path), PROMPT_SCHEMA) as sink:
        while chunk := list(islice(prompts, _PROMPTS_AT_ONCE)):
            table = prompts_to_table(chunk)
            sink.write_table(table)
            for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                digest.update(repr(row).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
