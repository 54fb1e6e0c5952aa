"""Published answers for tests of exports, and processes that export and die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from selection_builders import answer
from store_builders import FILE_METADATA, table_of

from rollmill.storage.objects import Objects
from rollmill.storage.plan import Plan, ShardRange
from rollmill.storage.publish import publish_run
from rollmill.storage.runs import RunStore
from rollmill.storage.schema import PROMPT_SCHEMA, RESPONSE_SCHEMA
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.export.config import ExportConfig
from rollmill.tasks.export.manifest import Manifest

Rewards = Sequence[Sequence[float | None]]

SYSTEM = {"role": "system", "content": "Be brief."}
FACTS = {
    "policy": {"model": "tiny", "version": 1},
    "prompts": {"source": "prompts.jsonl", "system_prompt": SYSTEM["content"]},
    "sampling": {"temperature": 1.0, "top_p": 1.0},
    "rewards": [{"type": "last_number", "weight": 1.0}],
}
MANY: Rewards = [[prompt % 3 / 2, 1.0, (prompt + 1) % 4 / 4, None if prompt % 5 == 0 else 0.0] for prompt in range(40)]
"""Groups of four, for two splits of which neither is empty."""


def publish_answers(
    objects: Objects,
    groups: Rewards = MANY,
    run_id: str = "run",
    *,
    policy_version: int = 1,
    prompts_per_shard: int = 7,
    contents: Mapping[int, Any] | None = None,
    with_prompts: bool = True,
) -> DatasetVersion:
    """Publish answers with these rewards; the prompt of group n is the text `question n`, or `contents[n]`."""
    starts = range(0, len(groups), prompts_per_shard)
    shards = [ShardRange(i, start, min(start + prompts_per_shard, len(groups))) for i, start in enumerate(starts)]
    plan = Plan(run_id, {"policy": {"version": policy_version}}, tuple(shards), len(groups[0]))
    runs = RunStore(objects, run_id)
    runs.open_plan(plan)
    metadata = {**FILE_METADATA, **{name: json.dumps(fact) for name, fact in FACTS.items()}}
    for shard in shards:
        prompts = range(shard.start, shard.stop)
        if with_prompts:
            asked = [_prompt(prompt, (contents or {}).get(prompt, f"question {prompt}")) for prompt in prompts]
            table = pa.Table.from_pylist(asked, schema=PROMPT_SCHEMA)
            runs.write_shard("prompts", shard.index, table, schema=PROMPT_SCHEMA, file_metadata={}, stats={})
        rows = table_of(
            answer(prompt, sample, run_id, reward=reward, policy_version=policy_version)
            for prompt in prompts
            for sample, reward in enumerate(groups[prompt])
        )
        runs.write_shard("generate", shard.index, rows, schema=RESPONSE_SCHEMA, file_metadata=metadata, stats={})
    return publish_run(objects, plan, "generate", policy_version=policy_version)


def _prompt(prompt: int, content: Any) -> dict[str, Any]:
    return {"prompt_id": f"p{prompt}", "content": json.dumps(content), "error": None, "metadata": "{}"}


def config_of(training_format: str = "sft", **options: Any) -> ExportConfig:
    """Return an export's configuration; a keyword of the selection goes there."""
    own = {name: options.pop(name) for name in ("test_fraction", "split_seed", "min_records") if name in options}
    return ExportConfig.model_validate({"format": training_format, "selection": options, "test_fraction": 0.3, **own})


def records_of(folder: Path, manifest: Manifest, split: str) -> list[dict[str, Any]]:
    """Return the records of a split, in order; none when there is no such split."""
    if split not in manifest.splits:
        return []
    tables = [pq.read_table(folder / file.path) for file in manifest.splits[split].files]
    records: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    return records


def all_files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of everything below a folder, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def export_and_die(store: Path, out: Path, method: str, beginning: str) -> int:
    """Export in a process that kills itself where it would call `method` for a key with that beginning."""
    program = (
        "import sys; from store_builders import *; from export_builders import config_of\n"
        "from rollmill.storage.store import RolloutStore\n"
        "from rollmill.tasks.export.exporting import export_training_set\n"
        "store, out, method, beginning = sys.argv[1:]\n"
        "place = die_before(open_objects(out), method, beginning)\n"
        "export_training_set(RolloutStore(store), place, config_of(), overwrite=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    arguments = [sys.executable, "-c", program, str(store), str(out), method, beginning]
    return subprocess.run(arguments, env=environment, timeout=120, check=False).returncode
