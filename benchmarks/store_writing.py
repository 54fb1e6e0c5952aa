"""Writing, resuming and publishing runs of many shards, and what the rows weigh on the disk.

Seconds and requests of each step are printed for runs of growing size, on a local folder and on a SeaweedFS that is
started for the purpose. Shards are small (two prompts with two answers), so that what is measured is the protocol.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollmill.storage.objects import Objects, StoredObject, open_objects
from rollmill.storage.parquet import encode
from rollmill.storage.plan import Plan, ShardRange
from rollmill.storage.publish import publish_run
from rollmill.storage.runs import RunStore
from rollmill.storage.schema import PROMPT_SCHEMA, RESPONSE_SCHEMA
from rollmill.storage.version import DatasetVersion

Result = TypeVar("Result")
GROUP_SIZE, PROMPTS_PER_SHARD, KEYS_PER_LISTING = 2, 2, 1000
FILE_METADATA = {"logprob_mode": "processed"}


class CountedObjects(Objects):
    """The objects of a store, with a count of the requests that each operation takes."""

    def __init__(self, inner: Objects) -> None:
        super().__init__(inner.url)
        self._inner, self._lock = inner, Lock()
        self.requests: Counter[str] = Counter()

    def _count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self.requests[name] += number

    def get(self, key: str) -> bytes:
        self._count("GET")
        return self._inner.get(key)

    def create(self, key: str, data: bytes) -> None:
        self._count("PUT")
        self._inner.create(key, data)

    def put(self, key: str, data: bytes) -> None:
        self._count("PUT")
        self._inner.put(key, data)

    def size(self, key: str) -> int | None:
        self._count("HEAD")
        return self._inner.size(key)

    def scan(self, prefix: str) -> list[StoredObject]:
        found = self._inner.scan(prefix)
        self._count("LIST", max(1, -(-len(found) // KEYS_PER_LISTING)))
        return found

    def delete(self, key: str) -> None:
        self._count("DELETE")
        self._inner.delete(key)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--stores", nargs="+", choices=["local", "seaweedfs"], default=["local", "seaweedfs"])
    parser.add_argument("--threads", type=int, default=8, help="workers that write shards")
    parser.add_argument("--parts-up-to", type=int, default=1000, help="also publish runs of up to so many as they go")
    options = parser.parse_args(arguments)
    measure_bytes()
    print(f"\n{'store':<10} {'shards':>6}  {'step':<28} {'seconds':>8} {'ms/shard':>9}  requests")
    for name in options.stores:
        with store(name) as objects:
            for num_shards in options.shards:
                measure_run(name, objects, num_shards, options.threads)
                if num_shards <= options.parts_up_to:
                    measure_parts(name, objects, num_shards, options.threads)


@contextmanager
def store(name: str) -> Iterator[CountedObjects]:
    """Give the objects of an empty store, which is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        if name == "local":
            yield CountedObjects(open_objects(f"{folder}/store"))
            return
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        from seaweedfs import BUCKET, running_seaweedfs

        with running_seaweedfs(Path(folder)) as server:
            key, secret = server.writer
            options = {"key": key, "secret": secret, "endpoint_url": server.endpoint_url}
            yield CountedObjects(open_objects(f"s3://{BUCKET}/store", options))


def measure_run(name: str, objects: CountedObjects, num_shards: int, num_threads: int) -> None:
    """Write, resume and publish one run as a whole."""
    plan = plan_of(f"run-{num_shards}", num_shards)
    runs = RunStore(objects, plan.run_id)
    do = partial(step, name, objects, num_shards)
    do(f"write, {num_threads} workers", lambda: write_all(runs, plan, num_threads))
    do("resume: what is finished", lambda: runs.finished("generate", range(num_shards)))
    version = do("publish", lambda: publish(objects, plan))
    print_entry(objects, version)
    do("publish again", lambda: publish(objects, plan))


def measure_parts(name: str, objects: CountedObjects, num_shards: int, num_threads: int) -> None:
    """Publish one run in ten parts, as it goes."""
    plan = plan_of(f"parts-{num_shards}", num_shards)
    write_all(RunStore(objects, plan.run_id), plan, num_threads)
    size = num_shards // 10
    for number in range(1, 11):
        part = range((number - 1) * size, number * size) if number < 10 else None
        label = f"publish part {number} of 10" if part else "publish the rest, prove all"
        version = step(name, objects, num_shards, label, partial(publish, objects, plan, part))
        if number in (1, 9, 10):
            print_entry(objects, version)


def step(name: str, objects: CountedObjects, num_shards: int, label: str, action: Callable[[], Result]) -> Result:
    """Do something, and print what it took."""
    objects.requests.clear()
    begin = time.perf_counter()
    result = action()
    seconds = time.perf_counter() - begin
    requests = ", ".join(f"{count} {method}" for method, count in sorted(objects.requests.items()))
    shown = f"{seconds:8.2f} {1000 * seconds / num_shards:9.2f}"
    print(f"{name:<10} {num_shards:>6}  {label:<28} {shown}  {requests}", flush=True)
    return result


def write_all(runs: RunStore, plan: Plan, num_threads: int) -> None:
    runs.open_plan(plan)
    with ThreadPoolExecutor(num_threads) as threads:
        list(threads.map(lambda shard: write(runs, plan, shard.index), plan.shards))


def print_entry(objects: Objects, version: DatasetVersion) -> None:
    size = objects.size(f"log/{version.number:012d}.json") or 0
    listed = len(version.entry.added or version.entry.files)
    print(f"{'':<10} {'':>6}  {'its log entry':<28} {size} bytes for {listed} new of {len(version.files)} files")


def publish(objects: Objects, plan: Plan, shards: range | None = None) -> DatasetVersion:
    return publish_run(objects, plan, "generate", policy_version=1, shards=shards)


def plan_of(run_id: str, num_shards: int) -> Plan:
    shards = tuple(
        ShardRange(index, index * PROMPTS_PER_SHARD, (index + 1) * PROMPTS_PER_SHARD) for index in range(num_shards)
    )
    return Plan(run_id, {"policy": "none"}, shards, GROUP_SIZE)


def write(runs: RunStore, plan: Plan, index: int) -> None:
    shard = plan.shards[index]
    ids = [f"p{number}" for number in range(shard.start, shard.stop)]
    prompts = pa.table(
        {
            "prompt_id": ids,
            "content": ["1 + 1"] * len(ids),
            "error": pa.nulls(len(ids), pa.string()),
            "metadata": ["{}"] * len(ids),
        }
    )
    runs.write_shard("prompts", index, prompts, schema=PROMPT_SCHEMA, file_metadata={}, stats={})
    rows = answers(plan.run_id, ids, GROUP_SIZE, lambda: ("2", [50, 2], [-0.5, -0.1]))
    runs.write_shard("generate", index, rows, schema=RESPONSE_SCHEMA, file_metadata=FILE_METADATA, stats={})


def answers(
    run_id: str, prompt_ids: list[str], group_size: int, answer: Callable[[], tuple[str, list[int], list[float]]]
) -> pa.Table:
    """Return `group_size` rows for each prompt id."""
    rows = []
    for prompt_id in prompt_ids:
        for sample in range(group_size):
            text, ids, logprobs = answer()
            rows.append(
                {
                    "run_id": run_id,
                    "prompt_id": prompt_id,
                    "sample_index": sample,
                    "policy_version": 1,
                    "seed": 1_000_003 * int(prompt_id[1:]) + sample,
                    "prompt_text": f"What is {prompt_id}?",
                    "response_text": text,
                    "prompt_token_ids": [1, 2, 3],
                    "response_token_ids": ids,
                    "logprobs": logprobs,
                    "finish_reason": "stop",
                    "error": None,
                    "reward": 1.0,
                    "reward_status": "ok",
                    "reward_error": None,
                    "reward_parts": [],
                    "metadata": "{}",
                }
            )
    return pa.Table.from_pylist(rows, schema=RESPONSE_SCHEMA)


def measure_bytes(num_prompts: int = 32, group_size: int = 8, num_tokens: int = 256) -> None:
    """Print what the same made-up answers weigh: words by Zipf's law, log-probabilities as a policy's are spread."""
    chance = np.random.default_rng(0)

    def answer() -> tuple[str, list[int], list[float]]:
        ids = np.minimum(chance.zipf(1.2, num_tokens), 49_151).tolist()
        logprobs = np.log(chance.beta(4, 0.6, num_tokens)).clip(-20, 0).astype(np.float32).tolist()
        return " ".join(f"w{token}" for token in ids), ids, logprobs

    table = answers("run", [f"p{number}" for number in range(num_prompts)], group_size, answer)
    total = num_prompts * group_size * num_tokens
    sizes = {
        "rollmill shard": len(encode(table, RESPONSE_SCHEMA, FILE_METADATA, "benchmark")),
        "JSONL, zstd": len(jsonl_zstd(table)),
        "naive Parquet": len(naive_parquet(table)),
    }
    print(f"{total} tokens, text and log-probabilities included")
    for name, size in sizes.items():
        print(f"{name:<16} {size:>9} bytes  {size / total:5.2f} bytes a token")


def jsonl_zstd(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for row in table.to_pylist():
            stream.write(json.dumps(row).encode() + b"\n")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def naive_parquet(table: pa.Table) -> bytes:
    """Return what pandas or `Table.from_pylist` with nothing said makes of the rows: wide numbers, snappy."""
    rows: list[dict[str, Any]] = table.to_pylist()
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


if __name__ == "__main__":
    main(sys.argv[1:])
