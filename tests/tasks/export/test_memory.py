"""An export holds a shard and what it has not yet written, however large the version is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from store_builders import GROUP_SIZE, plan_of, shard_prompts, write_rows

from rollmill.storage.objects import open_objects
from rollmill.storage.publish import publish_run
from rollmill.storage.runs import RunStore
from rollmill.storage.schema import PROMPT_SCHEMA, RESPONSE_SCHEMA

MEGABYTE = 2**20
TOKENS = 1000
PROMPTS_PER_SHARD = 240

_EXPORT = """
import json, sys
from pathlib import Path
from rollmill.storage.objects import open_objects
from rollmill.storage.store import RolloutStore
from rollmill.tasks.export.config import ExportConfig
from rollmill.tasks.export.exporting import export_training_set

store, out, training_format = sys.argv[1:]
config = ExportConfig(format=training_format, selection={"keep_truncated": True})
manifest = export_training_set(RolloutStore(store), open_objects(out), config).manifest
(line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
print(json.dumps({"peak": int(line.split()[1]) * 1024, "rows": manifest.rows, "records": manifest.records}))
"""


def test_memory_does_not_grow_with_the_version(tmp_path: Path) -> None:
    small, large = (_export(tmp_path / f"{number}", number, "table") for number in (8, 24))
    assert large["bytes"] > 2.9 * small["bytes"] > 90 * MEGABYTE
    assert large["peak"] - small["peak"] < 40 * MEGABYTE  # 65 more are stored, 130 when decoded


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("training_format", ["sft", "dpo", "table"])
def test_a_gigabyte_is_exported_in_less_than_500_megabytes(tmp_path: Path, training_format: str) -> None:
    found = _export(tmp_path, 260, training_format)
    sys.stdout.write(f"{training_format}: {found}\n")
    assert found["bytes"] > 1000 * MEGABYTE
    assert found["peak"] < 500 * MEGABYTE, found


def _export(folder: Path, num_shards: int, training_format: str) -> dict[str, Any]:
    """Export a version of so many shards, each of about 5 MB, in a process of its own."""
    num_prompts = num_shards * PROMPTS_PER_SHARD
    size = _publish(folder / "store", num_prompts)
    arguments = [sys.executable, "-c", _EXPORT, str(folder / "store"), str(folder / "out"), training_format]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(folder)}
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=1800, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["rows"] == num_prompts * GROUP_SIZE
    assert found["records"] >= num_prompts
    return {**found, "bytes": size}


def _publish(folder: Path, num_prompts: int) -> int:
    objects, plan = open_objects(str(folder)), plan_of("run", num_prompts, PROMPTS_PER_SHARD)
    runs = RunStore(objects, "run")
    runs.open_plan(plan)
    for shard in plan.shards:
        asked = shard_prompts(plan, shard.index)
        runs.write_shard("prompts", shard.index, asked, schema=PROMPT_SCHEMA, file_metadata={}, stats={})
        write_rows(runs, shard.index, _rows(shard.start, shard.num_prompts))
    version = publish_run(objects, plan, "generate", policy_version=1)
    return sum(file.bytes for file in version.files)


def _rows(start: int, num_prompts: int) -> pa.Table:
    """Return rows whose token ids, logprobs and texts cannot be compressed much."""
    rng = np.random.default_rng(start)
    number = num_prompts * GROUP_SIZE
    offsets = pa.array(np.arange(number + 1, dtype=np.int32) * TOKENS)
    ids = rng.integers(0, 50_000, (number, TOKENS), dtype=np.int32)
    constant: dict[str, Any] = {
        "run_id": "run",
        "policy_version": 1,
        "prompt_text": "question",
        "prompt_token_ids": [1, 2, 3],
        "finish_reason": "length",
        "error": None,
        "reward_status": "ok",
        "reward_error": None,
        "reward_parts": None,
        "metadata": "{}",
    }
    varied = {
        "prompt_id": pa.array([f"p{start + row // GROUP_SIZE}" for row in range(number)]),
        "sample_index": pa.array(np.tile(np.arange(GROUP_SIZE, dtype=np.int32), num_prompts)),
        "seed": pa.array(np.arange(number, dtype=np.uint64)),
        "response_text": pa.array([" ".join(map(str, row[:200])) for row in ids.tolist()]),
        "response_token_ids": pa.ListArray.from_arrays(offsets, pa.array(ids.reshape(-1))),
        "logprobs": pa.ListArray.from_arrays(offsets, pa.array(-rng.random(number * TOKENS, dtype=np.float32))),
        "reward": pa.array(rng.random(number)),
    }
    columns = [
        varied[field.name] if field.name in varied else pa.array([constant.get(field.name)] * number, field.type)
        for field in RESPONSE_SCHEMA
    ]
    return pa.table(columns, schema=RESPONSE_SCHEMA)
