"""Rows, plans and whole runs for storage tests, and workers that die where they are told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rollmill.storage.objects import Objects, open_objects
from rollmill.storage.plan import Plan, ShardRange
from rollmill.storage.runs import RunStore, ShardMarker
from rollmill.storage.schema import PROMPT_SCHEMA, RESPONSE_SCHEMA

if TYPE_CHECKING:
    from rollmill.storage.store import RolloutStore


@dataclass(frozen=True, slots=True)
class Place:
    """An empty place for a store."""

    url: str
    storage_options: dict[str, Any] | None = None

    def objects(self) -> Objects:
        return open_objects(self.url, self.storage_options)

    def store(self) -> RolloutStore:
        from rollmill.storage.store import RolloutStore

        return RolloutStore(self.url, self.storage_options)


def in_memory() -> Objects:
    """Return the objects of an empty place in memory."""
    return open_objects(f"memory://{uuid.uuid4().hex}")


GROUP_SIZE = 3
FILE_METADATA = {"logprob_mode": "processed", "sampling": '{"temperature": 1.0}'}


def plan_of(run_id: str = "run", num_prompts: int = 5, prompts_per_shard: int = 2, **identity: Any) -> Plan:
    """Return a plan of shards of `prompts_per_shard` prompts; the last may be shorter."""
    starts = range(0, num_prompts, prompts_per_shard)
    shards = tuple(
        ShardRange(index, start, min(start + prompts_per_shard, num_prompts)) for index, start in enumerate(starts)
    )
    return Plan(run_id, {"policy": {"model": "tiny", "version": 1}, **identity}, shards, GROUP_SIZE)


def row_of(prompt: int, sample: int, run_id: str = "run", **changes: Any) -> dict[str, Any]:
    """Return one sound response row, different for each prompt and sample."""
    num_tokens = 1 + (prompt + sample) % 4
    row = {
        "run_id": run_id,
        "prompt_id": f"p{prompt}",
        "sample_index": sample,
        "policy_version": 1,
        "seed": 2**64 - 1 - prompt * GROUP_SIZE - sample,
        "prompt_text": f"question {prompt}",
        "response_text": f"answer {prompt}.{sample}",
        "prompt_token_ids": list(range(10, 11 + prompt)),
        "response_token_ids": [100 * prompt + token for token in range(num_tokens)],
        "logprobs": [-0.25 * (token + 1) for token in range(num_tokens)],
        "finish_reason": "length" if sample == 1 else "stop",
        "error": None,
        "reward": float(prompt + sample),
        "reward_status": "ok",
        "reward_error": None,
        "reward_parts": [{"name": "number", "value": float(sample)}],
        "metadata": json.dumps({"answer": prompt}),
    }
    return {**row, **changes}


def failed_row(prompt: int, sample: int, run_id: str = "run") -> dict[str, Any]:
    """Return the row of a prompt that could not be answered."""
    nothing: dict[str, Any] = {"response_token_ids": [], "logprobs": [], "reward": None, "response_text": ""}
    return row_of(prompt, sample, run_id, **nothing, finish_reason="error", error="too long", reward_status="skipped")


def table_of(rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=RESPONSE_SCHEMA)


def loose_table_of(rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Return a table as a careless caller makes it: wider numbers, nulls anywhere."""
    wide = {
        pa.int32(): pa.int64(),
        pa.list_(pa.int32()): pa.list_(pa.int64()),
        pa.list_(pa.float32()): pa.list_(pa.float64()),
    }
    fields = [pa.field(field.name, wide.get(field.type, field.type)) for field in RESPONSE_SCHEMA]
    return pa.Table.from_pylist(list(rows), schema=pa.schema(fields))


def parts_of(cell: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return a row's reward parts by name."""
    return {part["name"]: part["value"] for part in cell}


def shard_rows(plan: Plan, index: int, **changes: Any) -> pa.Table:
    """Return the sound rows of one shard."""
    shard = plan.shards[index]
    return table_of(
        row_of(prompt, sample, plan.run_id, **changes)
        for prompt in range(shard.start, shard.stop)
        for sample in range(plan.group_size)
    )


def shard_prompts(plan: Plan, index: int) -> pa.Table:
    shard = plan.shards[index]
    prompts = [
        {"prompt_id": f"p{prompt}", "content": f'"question {prompt}"', "error": None, "metadata": "{}"}
        for prompt in range(shard.start, shard.stop)
    ]
    return pa.Table.from_pylist(prompts, schema=PROMPT_SCHEMA)


def write_rows(runs: RunStore, index: int, table: pa.Table, stage: str = "generate", **metadata: str) -> ShardMarker:
    return runs.write_shard(
        stage, index, table, schema=RESPONSE_SCHEMA, file_metadata={**FILE_METADATA, **metadata}, stats={}
    )


def write_run(objects: Objects, plan: Plan, stage: str = "generate", prompts: bool = True, **changes: Any) -> RunStore:
    """Write the plan and every shard of a sound run, without publishing it."""
    runs = RunStore(objects, plan.run_id)
    runs.open_plan(plan)
    for shard in plan.shards:
        if prompts:
            table = shard_prompts(plan, shard.index)
            runs.write_shard("prompts", shard.index, table, schema=PROMPT_SCHEMA, file_metadata={}, stats={})
        write_rows(runs, shard.index, shard_rows(plan, shard.index, **changes), stage)
    return runs


def in_processes(call: str, url: str, storage_options: dict[str, Any] | None, number: int) -> list[tuple[int, str]]:
    """Run `call`, an expression over this module's names and `objects`, in `number` processes at once.

    Each process is ready before any begins. Returns (exit status, printed value) of each.
    """
    program = (
        "import sys, json; from store_builders import *; url, options = json.loads(sys.argv[1]); "
        f"objects = open_objects(url, options); print('ready', flush=True); sys.stdin.readline(); print({call})"
    )
    arguments = [sys.executable, "-c", program, json.dumps([url, storage_options])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    children = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(number)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    printed = [child.communicate(timeout=60)[0].strip() for child in children]
    return [(child.returncode, text) for child, text in zip(children, printed, strict=True)]


def die_before(objects: Objects, method: str, beginning: str = "") -> Objects:
    """Return the objects, changed so that this process kills itself where it would call `method` of them.

    Only keys with that beginning are deadly.
    """
    unchanged = getattr(objects, method)

    def die(key: str, data: bytes) -> None:
        if key.startswith(beginning):
            os.kill(os.getpid(), signal.SIGKILL)
        unchanged(key, data)

    setattr(objects, method, die)
    return objects


def write_one(objects: Objects, index: int = 0) -> str:
    """Write one shard of the usual plan and return the file that won."""
    plan = plan_of()
    return write_rows(RunStore(objects, plan.run_id), index, shard_rows(plan, index)).file


def publish_one(objects: Objects, run_id: str) -> int:
    """Publish a run that is written already and return the version's number."""
    from rollmill.storage.publish import publish_run

    plan = RunStore(objects, run_id).load_plan()
    assert plan is not None
    return publish_run(objects, plan, "generate", policy_version=1).number


__all__ = [name for name in dir() if not name.startswith("__")]
