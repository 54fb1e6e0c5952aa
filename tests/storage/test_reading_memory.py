"""What a reader holds is a minibatch and what is made ahead, however large the version is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import memory_worker
import numpy as np
import pyarrow as pa
import pytest
from store_builders import GROUP_SIZE, Place, plan_of, write_rows

from rollmill.storage.objects import Objects
from rollmill.storage.publish import publish_run
from rollmill.storage.runs import RunStore
from rollmill.storage.schema import RESPONSE_SCHEMA

MEGABYTE = 2**20
TOKENS = 1000


def test_memory_does_not_grow_with_the_version(tmp_path: Path) -> None:
    small, large = (_read(tmp_path / f"{number}", number) for number in (6, 24))
    assert large["bytes"] > 3 * small["bytes"] > 15 * MEGABYTE
    assert large["peak"] - small["peak"] < 40 * MEGABYTE  # 70 more are stored, 200 when decoded


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_gigabyte_is_read_in_less_than_400_megabytes(tmp_path: Path) -> None:
    found = _read(tmp_path, 280)
    assert found["bytes"] > 1000 * MEGABYTE
    assert found["peak"] < 400 * MEGABYTE, found


def _read(folder: Path, num_shards: int) -> dict[str, Any]:
    """Read a version of so many shards, each of about 4 MB, in a process of its own."""
    num_prompts = num_shards * 240
    size = _publish(Place(str(folder)).objects(), num_prompts)
    arguments = [sys.executable, memory_worker.__file__, str(folder), str(num_prompts // 8)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=900)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["groups"] == num_prompts
    assert found["tokens"] == num_prompts * GROUP_SIZE * TOKENS
    assert not found["pandas"]  # 45 MB that reading needs not
    return {**found, "bytes": size}


def _publish(objects: Objects, num_prompts: int) -> int:
    plan = plan_of("run", num_prompts, 240)
    runs = RunStore(objects, "run")
    runs.open_plan(plan)
    for shard in plan.shards:
        write_rows(runs, shard.index, _rows(shard.start, shard.num_prompts))
    version = publish_run(objects, plan, "generate", policy_version=1)
    return sum(file.bytes for file in version.files)


def _rows(start: int, num_prompts: int) -> pa.Table:
    """Return rows whose token ids and logprobs cannot be compressed much."""
    rng = np.random.default_rng(start)
    number = num_prompts * GROUP_SIZE
    offsets = pa.array(np.arange(number + 1, dtype=np.int32) * TOKENS)
    ids = pa.array(rng.integers(0, 50_000, number * TOKENS, dtype=np.int32))
    logprobs = pa.array(-rng.random(number * TOKENS, dtype=np.float32))
    constant: dict[str, Any] = {
        "run_id": "run",
        "policy_version": 1,
        "prompt_text": "question",
        "response_text": "answer",
        "prompt_token_ids": [1, 2, 3],
        "kept_token_ids": None,
        "full_logprobs": None,
        "finish_reason": "length",
        "error": None,
        "reward": 1.0,
        "reward_status": "ok",
        "reward_error": None,
        "reward_parts": None,
        "metadata": "{}",
    }
    varied = {
        "prompt_id": pa.array([f"p{start + row // GROUP_SIZE}" for row in range(number)]),
        "sample_index": pa.array(np.tile(np.arange(GROUP_SIZE, dtype=np.int32), num_prompts)),
        "seed": pa.array(np.arange(number, dtype=np.uint64)),
        "response_token_ids": pa.ListArray.from_arrays(offsets, ids),
        "logprobs": pa.ListArray.from_arrays(offsets, logprobs),
    }
    columns = [
        varied[field.name] if field.name in varied else pa.array([constant[field.name]] * number, field.type)
        for field in RESPONSE_SCHEMA
    ]
    return pa.table(columns, schema=RESPONSE_SCHEMA)
