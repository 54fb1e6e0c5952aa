"""Stores of what the tiny policy really answered, for tests that train on it."""

from __future__ import annotations

import json
from typing import Any

from builders import byte_tokenizer, tiny_model
from store_builders import row_of, table_of, write_rows

from rollmill.storage.objects import Objects
from rollmill.storage.plan import Plan, ShardRange
from rollmill.storage.publish import publish_run
from rollmill.storage.results import RawRollout
from rollmill.storage.runs import RunStore
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.generation.generator import RolloutGenerator
from rollmill.tasks.generation.scheduler import InferenceScheduler

NUM_PROMPTS, GROUP_SIZE = 5, 4


def publish_generated(
    objects: Objects, run_id: str = "run", policy_version: int = 7, num_prompts: int = NUM_PROMPTS, **sampling: Any
) -> DatasetVersion:
    """Publish answers of the tiny policy, whose rewards are 0 and 1 in turn."""
    tokenizer = byte_tokenizer()
    generator = RolloutGenerator(
        InferenceScheduler(tiny_model(), tokenizer), tokenizer, max_tokens=6, group_size=GROUP_SIZE, seed=0, **sampling
    )
    raw = generator.generate({"prompt": [f"question {'x' * number}" for number in range(num_prompts)]})
    plan = Plan(run_id, {"policy": {"version": policy_version}}, (ShardRange(0, 0, num_prompts),), GROUP_SIZE)
    runs = RunStore(objects, run_id)
    runs.open_plan(plan)
    rows = [
        _row(raw, prompt, sample, run_id, policy_version)
        for prompt in range(num_prompts)
        for sample in range(GROUP_SIZE)
    ]
    write_rows(runs, 0, table_of(rows), sampling=json.dumps({"temperature": 1.0, **sampling}))
    return publish_run(objects, plan, "generate", policy_version=policy_version)


def _row(raw: RawRollout, prompt: int, sample: int, run_id: str, policy_version: int) -> dict[str, object]:
    kept = raw.response_mask[prompt, sample]
    return row_of(
        prompt,
        sample,
        run_id,
        policy_version=policy_version,
        prompt_token_ids=raw.prompts[prompt][raw.prompt_mask[prompt]].tolist(),
        response_token_ids=raw.responses[prompt, sample][kept].tolist(),
        logprobs=raw.logprobs_old[prompt, sample][kept].tolist(),
        finish_reason=raw.finish_reasons[prompt][sample],
        reward=float(sample % 2),
    )
