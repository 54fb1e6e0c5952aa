"""The work of answering one shard's prompts and storing the rows. What is stored is not done again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from rollmill.storage.ledger import GENERATE_STAGE as GENERATE_STAGE
from rollmill.storage.plan import ShardRange
from rollmill.storage.runs import RunStore, ShardMarker
from rollmill.storage.schema import RESPONSE_SCHEMA, REWARD_PENDING
from rollmill.tasks.figures import answer_stats
from rollmill.tasks.generation.config import PolicyConfig, SamplingConfig
from rollmill.tasks.generation.engine import Engines
from rollmill.tasks.generation.engine_client import ProgressCallback
from rollmill.tasks.generation.seeds import row_seed
from rollmill.tasks.generation.types import (
    FINISH_ERROR,
    LOGPROB_MODE_PROCESSED,
    Completion,
    PromptGroup,
)
from rollmill.tasks.planning import ShardPrompts
from rollmill.tasks.prompts.prompt import Prompt, to_json
from rollmill.tasks.prompts.rendering import PromptRenderer, RenderedPrompt
from rollmill.tasks.usage import device_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRef:
    """Where a finished shard is and what is in it: all that tasks tell each other, as JSON values of a few bytes."""

    stage: str
    index: int
    num_rows: int
    num_bytes: int
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """All that answering a shard's prompts takes."""

    run: RunStore
    policy: PolicyConfig
    sampling: SamplingConfig
    tokenizer: PreTrainedTokenizerBase
    renderer: PromptRenderer
    prompts: ShardPrompts
    engines: Engines
    identity: dict[str, Any]

    @property
    def file_metadata(self) -> dict[str, str]:
        """What every file says of itself: logprob mode, policy, sampling, fingerprints."""
        values = {name: to_json(value) for name, value in self.identity.items()}
        return {"logprob_mode": LOGPROB_MODE_PROCESSED, **values}


def generate_shard(work: Generation, shard: ShardRange, on_progress: ProgressCallback | None = None) -> ShardRef:
    """Answer the shard's prompts and store the rows, unscored; nothing is done when they are stored already.

    A prompt that cannot be asked, or an answer that failed, is a row with finish_reason error that says why.
    Raises EngineDiedError when the engine ended, and StorageError when the store holds something unexpected.
    """
    done = work.run.finished(GENERATE_STAGE, [shard.index]).get(shard.index)
    if done is None:
        begin = time.monotonic()
        prompts = work.prompts.of(shard)
        rendered = [work.renderer.render(prompt) for prompt in prompts]
        answers, used = _answer(work, rendered, on_progress)
        table = _to_table(work, prompts, rendered, answers)
        done = work.run.write_shard(
            GENERATE_STAGE,
            shard.index,
            table,
            schema=RESPONSE_SCHEMA,
            file_metadata=work.file_metadata,
            stats={**answer_stats(table), **_span(begin), **used},
        )
    return reference(GENERATE_STAGE, done)


def _span(begin: float) -> dict[str, Any]:
    """Return how long a shard took and when it was done, for the reports' tokens a second."""
    return {
        "seconds": round(time.monotonic() - begin, 3),
        "ended_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def _answer(
    work: Generation, rendered: Sequence[RenderedPrompt], on_progress: ProgressCallback | None
) -> tuple[dict[str, list[Completion]], dict[str, float]]:
    """Return the answers by prompt id, and the device-seconds that they took."""
    groups = [_group(work.sampling, prompt) for prompt in rendered if prompt.error is None]
    if not groups:
        return {}, device_seconds(0.0, "cpu")
    done = work.engines.answer(groups, on_progress)
    answers = {group.key: answer.completions for group, answer in zip(groups, done.groups, strict=True)}
    return answers, device_seconds(done.seconds, done.device, done.gpu_share)


def _group(sampling: SamplingConfig, prompt: RenderedPrompt) -> PromptGroup:
    seeds = [row_seed(sampling.seed, prompt.prompt_id, sample) for sample in range(sampling.group_size)]
    return PromptGroup(key=prompt.prompt_id, input_ids=prompt.input_ids, seeds=seeds, sampling=sampling.params())


def _to_table(
    work: Generation,
    prompts: Sequence[Prompt],
    rendered: Sequence[RenderedPrompt],
    answers: dict[str, list[Completion]],
) -> pa.Table:
    rows = [
        row
        for prompt, asked in zip(prompts, rendered, strict=True)
        for row in _rows(work, prompt, asked, answers[prompt.prompt_id] if asked.error is None else None)
    ]
    return pa.Table.from_pylist(rows, schema=RESPONSE_SCHEMA)


def _rows(
    work: Generation, prompt: Prompt, asked: RenderedPrompt, completions: list[Completion] | None
) -> Iterator[dict[str, Any]]:
    if completions is None:
        failed = Completion(token_ids=[], logprobs=[], finish_reason=FINISH_ERROR, error=asked.error)
        completions = [failed] * work.sampling.group_size
    shared = {
        "run_id": work.run.run_id,
        "prompt_id": prompt.prompt_id,
        "policy_version": work.policy.version,
        "prompt_text": asked.text,
        "prompt_token_ids": asked.input_ids,
        "reward_status": REWARD_PENDING,
        "metadata": json.dumps(prompt.columns, ensure_ascii=False),
    }
    for sample, completion in enumerate(completions):
        yield {
            **shared,
            "sample_index": sample,
            "seed": row_seed(work.sampling.seed, prompt.prompt_id, sample),
            "response_text": work.tokenizer.decode(completion.token_ids, skip_special_tokens=True),
            "response_token_ids": completion.token_ids,
            "logprobs": completion.logprobs,
            "kept_token_ids": completion.kept_token_ids,
            "full_logprobs": completion.full_logprobs,
            "finish_reason": completion.finish_reason,
            "error": completion.error,
        }


def reference(stage: str, marker: ShardMarker) -> ShardRef:
    """Return what tasks need to know of a committed shard."""
    return ShardRef(
        stage=stage, index=marker.index, num_rows=marker.rows, num_bytes=marker.bytes, stats=dict(marker.stats)
    )
