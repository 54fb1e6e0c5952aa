"""Stores of what the tiny policy really answered, and its logits, for tests that train on it."""

from __future__ import annotations

import json
from typing import Any

import torch
from builders import byte_tokenizer, tiny_model
from store_builders import row_of, table_of, write_rows
from torch import Tensor

from rollmill.storage.objects import Objects
from rollmill.storage.plan import Plan, ShardRange
from rollmill.storage.publish import publish_run
from rollmill.storage.results import RolloutResult
from rollmill.storage.runs import RunStore
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.generation.scheduler import InferenceScheduler

NUM_PROMPTS, GROUP_SIZE = 5, 4


def publish_generated(
    objects: Objects, run_id: str = "run", policy_version: int = 7, num_prompts: int = NUM_PROMPTS, **sampling: Any
) -> DatasetVersion:
    """Publish answers of the tiny policy, whose rewards are 0 and 1 in turn; `sampling` is as for `run_batch`."""
    tokenizer = byte_tokenizer()
    prompts = [tokenizer.encode(f"question {'x' * number}") for number in range(num_prompts)]
    repeated = [ids for ids in prompts for _ in range(GROUP_SIZE)]
    answers = InferenceScheduler(tiny_model(), tokenizer).run_batch(
        repeated, **{"max_tokens": 6, **sampling}, seeds=range(len(repeated))
    )
    rows = [
        row_of(
            number // GROUP_SIZE,
            number % GROUP_SIZE,
            run_id,
            policy_version=policy_version,
            prompt_token_ids=ids,
            response_token_ids=answer.token_ids,
            logprobs=answer.logprobs,
            kept_token_ids=answer.kept_token_ids,
            finish_reason=answer.finish_reason,
            reward=float(number % 2),
        )
        for number, (ids, answer) in enumerate(zip(repeated, answers, strict=True))
    ]
    plan = Plan(run_id, {"policy": {"version": policy_version}}, (ShardRange(0, 0, num_prompts),), GROUP_SIZE)
    runs = RunStore(objects, run_id)
    runs.open_plan(plan)
    write_rows(runs, 0, table_of(rows), sampling=json.dumps({"temperature": 1.0, **sampling}))
    return publish_run(objects, plan, "generate", policy_version=policy_version)


def logits_of(result: RolloutResult) -> Tensor:
    """Return the tiny policy's logits at each response token, [B, G, R, vocab], recomputed row by row."""
    model = tiny_model()
    shape = result.responses.shape
    logits = torch.zeros(*shape, model.config.vocab_size)
    for group in range(shape[0]):
        prompt = result.prompts[group][result.prompt_mask[group]]
        for sample in range(shape[1]):
            mask = result.response_mask[group, sample]
            ids = torch.cat([prompt, result.responses[group, sample][mask]])
            with torch.no_grad():
                logits[group, sample][mask] = model(ids[None]).logits[0, len(prompt) - 1 : -1]
    return logits
