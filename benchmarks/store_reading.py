"""Reading a version into padded minibatches, against plain pyarrow, `datasets` and MosaicML `streaming`.

All read the same rows: made-up answers with a vocabulary like a language model's, one published run on a local folder
or on a SeaweedFS that is started for the purpose. Each round measures every reader once, one after the other, and the
medians of all rounds are printed. `pyarrow` only decodes the columns, in two threads; all others shuffle and give
minibatches of 8 prompts with padded tensors, masks and texts on two cores. `streaming` needs other releases of numpy
and transformers, so it runs under the Python that --streaming-python names, and is left out without one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import s3fs
import torch

from rollmill.storage.dataset import RolloutDataset
from rollmill.storage.objects import open_objects
from rollmill.storage.plan import Plan, ShardRange
from rollmill.storage.publish import publish_run
from rollmill.storage.runs import RunStore
from rollmill.storage.schema import RESPONSE_SCHEMA, RESULT_COLUMNS
from rollmill.storage.store import RolloutStore

GROUP_SIZE, PROMPTS_PER_BATCH, VOCAB_SIZE = 8, 8, 50_000
WORDS = np.array([f" word{index}" if index % 3 else " the" for index in range(VOCAB_SIZE)])
Counts = tuple[int, int]  # rows, response tokens
Reader = Callable[[], Counts]


def main(arguments: list[str]) -> None:
    options = _options(arguments)
    torch.set_num_threads(1)
    pa.set_cpu_count(2)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for place in options.places:
            if place == "s3":
                with _seaweedfs(Path(folder)) as (url, storage_options):
                    _measure(options, url, storage_options, Path(folder) / "s3")
            else:
                _measure(options, str(Path(folder) / "store"), None, Path(folder) / "local")


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="store.py reading", description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=2048)
    parser.add_argument("--prompts-per-shard", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400, help="mean length of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--places", nargs="+", choices=["local", "s3"], default=["local", "s3"])
    parser.add_argument("--folder", help="where the measured files lie, by default the system's temporary folder")
    parser.add_argument("--streaming-python", help="a Python that can import mosaicml-streaming and torch")
    return parser.parse_args(arguments)


def _measure(options: argparse.Namespace, url: str, storage_options: dict[str, Any] | None, scratch: Path) -> None:
    store = _publish(options, url, storage_options)
    version = store.latest()
    num_bytes = sum(file.bytes for file in version.files)
    readers = _readers(options, store, storage_options, scratch)
    expected = readers["pyarrow, two threads"]()
    name_of_place = "SeaweedFS" if storage_options else "local disk"
    print(f"\n{name_of_place}: {version.num_rows} rows, {expected[1]} response tokens, {num_bytes / 2**20:.0f} MiB of")
    print(f"Parquet in {len(version.files)} files; {options.rounds} rounds after one that is not counted")
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    for number in range(options.rounds + 1):
        for name, read in readers.items():
            begin = time.perf_counter()
            counts = read()
            taken = time.perf_counter() - begin
            assert counts == expected, (name, counts, expected)
            if number:
                seconds[name].append(taken)
    base = statistics.median(seconds["pyarrow, two threads"])
    for name, values in seconds.items():
        median = statistics.median(values)
        print(
            f"  {name:42} {median:7.2f} s  ({min(values):.2f} to {max(values):.2f})  {median / base:6.2f} x pyarrow"
            f"  {expected[1] / median / 1e6:7.2f} M tokens/s"
        )


def _readers(
    options: argparse.Namespace, store: RolloutStore, storage_options: dict[str, Any] | None, scratch: Path
) -> dict[str, Reader]:
    files = [file.file for file in store.latest().files]
    if storage_options is None:
        readers = {
            "pyarrow, two threads": lambda: _plain([store.objects.where(file) for file in files], None),
            "rollmill": lambda: _rollmill(RolloutDataset(store, PROMPTS_PER_BATCH)),
            "datasets, torch format": _datasets_reader([store.objects.where(file) for file in files], scratch),
        }
        if options.streaming_python:
            readers["streaming, MDS on disk"] = _streaming_reader(options.streaming_python, store, scratch)
        return readers
    s3 = s3fs.S3FileSystem(**storage_options)
    cached, empty = scratch / "cache", scratch / "no_cache"
    return {
        "pyarrow, two threads": lambda: _plain([store.objects.where(file) for file in files], s3),
        "rollmill, nothing kept": lambda: _rollmill(
            RolloutDataset(store, PROMPTS_PER_BATCH, cache_dir=empty, max_cache_bytes=0)
        ),
        "rollmill, from its cache": lambda: _rollmill(RolloutDataset(store, PROMPTS_PER_BATCH, cache_dir=cached)),
        "datasets, streaming from S3": lambda: _datasets_streaming(
            [store.objects.where(file) for file in files], storage_options
        ),
    }


def _rollmill(dataset: RolloutDataset) -> Counts:
    rows = tokens = 0
    for result in dataset:
        rows += result.rewards.numel()
        tokens += int(result.response_mask.sum())
    return rows, tokens


def _plain(paths: list[str], filesystem: s3fs.S3FileSystem | None) -> Counts:
    def read(path: str) -> Counts:
        source = path if filesystem is None else pa.BufferReader(filesystem.cat_file(path))
        table = pq.ParquetFile(source).read(columns=RESULT_COLUMNS, use_threads=False)
        return table.num_rows, sum(len(chunk.values) for chunk in table["response_token_ids"].chunks)

    with ThreadPoolExecutor(2) as threads:
        counts = list(threads.map(read, paths))
    return sum(rows for rows, _ in counts), sum(tokens for _, tokens in counts)


def _datasets_reader(paths: list[str], scratch: Path) -> Reader:
    from datasets import load_dataset

    rows = load_dataset("parquet", data_files=paths, split="train", cache_dir=str(scratch / "hub"))
    rows = rows.select_columns(RESULT_COLUMNS).with_format("torch")
    groups = np.arange(len(rows)).reshape(-1, GROUP_SIZE)

    def read() -> Counts:
        order = np.random.default_rng(0).permutation(len(groups))
        counts = [0, 0]
        for start in range(0, len(order), PROMPTS_PER_BATCH):
            chosen = groups[order[start : start + PROMPTS_PER_BATCH]].reshape(-1)
            mask = padded_minibatch(rows[chosen.tolist()])["response_mask"]
            counts[0] += mask.shape[0]
            counts[1] += int(mask.sum())
        return counts[0], counts[1]

    return read


def _datasets_streaming(paths: list[str], storage_options: dict[str, Any]) -> Counts:
    from datasets import load_dataset

    rows = load_dataset("parquet", data_files=paths, split="train", streaming=True, storage_options=storage_options)
    counts = [0, 0]
    for batch in rows.select_columns(RESULT_COLUMNS).with_format("torch").iter(PROMPTS_PER_BATCH * GROUP_SIZE):
        mask = padded_minibatch(batch)["response_mask"]
        counts[0] += mask.shape[0]
        counts[1] += int(mask.sum())
    return counts[0], counts[1]


def padded_minibatch(rows: dict[str, Any]) -> dict[str, Any]:
    """Pad the rows of a minibatch, as lists of tensors, to what a trainer needs."""
    responses = [torch.as_tensor(ids) for ids in rows["response_token_ids"]]
    prompts = [torch.as_tensor(ids).flip(0) for ids in rows["prompt_token_ids"][::GROUP_SIZE]]
    pad = torch.nn.utils.rnn.pad_sequence
    lengths = torch.tensor([len(ids) for ids in responses])
    prompt_lengths = torch.tensor([len(ids) for ids in prompts])
    ids = pad(responses, batch_first=True).long()
    prompt_ids = pad(prompts, batch_first=True).flip(1).long()
    return {
        "prompts": prompt_ids,
        "prompt_mask": torch.arange(prompt_ids.shape[1]).flip(0) < prompt_lengths[:, None],
        "responses": ids,
        "response_mask": torch.arange(ids.shape[1]) < lengths[:, None],
        "logprobs_old": pad([torch.as_tensor(values) for values in rows["logprobs"]], batch_first=True).float(),
        "rewards": torch.as_tensor(rows["reward"]).float(),
        "prompt_texts": rows["prompt_text"][::GROUP_SIZE],
        "response_texts": rows["response_text"],
        "columns": [json.loads(text) for text in rows["metadata"][::GROUP_SIZE]],
    }


def _streaming_reader(python: str, store: RolloutStore, scratch: Path) -> Reader:
    """Return a reader that asks a process of the other Python, which has converted the rows to MDS, for an epoch."""
    worker = Path(__file__).with_name("streaming_worker.py")
    paths = [store.objects.where(file.file) for file in store.latest().files]
    process = subprocess.Popen(
        [python, str(worker), str(scratch / "mds"), *paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asked, answers = process.stdin, process.stdout
    assert answers.readline() == "ready\n", "the process that reads with streaming did not start"

    def read() -> Counts:
        asked.write("epoch\n")
        asked.flush()
        rows, tokens = json.loads(answers.readline())
        return rows, tokens

    return read


def _publish(options: argparse.Namespace, url: str, storage_options: dict[str, Any] | None) -> RolloutStore:
    starts = range(0, options.prompts, options.prompts_per_shard)
    shards = tuple(
        ShardRange(index, start, min(start + options.prompts_per_shard, options.prompts))
        for index, start in enumerate(starts)
    )
    plan = Plan("reading", {}, shards, GROUP_SIZE)
    objects = open_objects(url, storage_options)
    runs = RunStore(objects, plan.run_id)
    runs.open_plan(plan)
    for shard in shards:
        table = made_up_rows(shard.start, shard.stop, options.tokens)
        metadata = {"logprob_mode": "processed"}
        runs.write_shard("score", shard.index, table, schema=RESPONSE_SCHEMA, file_metadata=metadata, stats={})
    publish_run(objects, plan, "score", policy_version=0)
    return RolloutStore(url, storage_options)


def made_up_rows(start: int, stop: int, mean_tokens: int) -> pa.Table:
    """Return sound rows of some prompts, whose tokens are distributed as in natural text (Zipf)."""
    rng = np.random.default_rng([start, stop])
    num_rows = (stop - start) * GROUP_SIZE
    lengths = rng.integers(mean_tokens // 4, 2 * mean_tokens - mean_tokens // 4, num_rows)
    ids = np.minimum(rng.zipf(1.2, int(lengths.sum())), VOCAB_SIZE - 1).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    prompts = [np.minimum(rng.zipf(1.2, 100), VOCAB_SIZE - 1).astype(np.int32) for _ in range(start, stop)]
    repeat = np.repeat(np.arange(stop - start), GROUP_SIZE)
    texts = ["".join(WORDS[prompt].tolist()) for prompt in prompts]
    columns = {
        "run_id": ["reading"] * num_rows,
        "prompt_id": [f"prompt-{start + index:06d}" for index in repeat],
        "sample_index": np.tile(np.arange(GROUP_SIZE, dtype=np.int32), stop - start),
        "policy_version": np.zeros(num_rows, np.int64),
        "seed": np.arange(num_rows, dtype=np.uint64),
        "prompt_text": [texts[index] for index in repeat],
        "response_text": ["".join(WORDS[ids[a:b]].tolist()) for a, b in pairwise(offsets)],
        "prompt_token_ids": [prompts[index] for index in repeat],
        "response_token_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids)),
        "logprobs": pa.ListArray.from_arrays(pa.array(offsets), pa.array(-rng.exponential(0.5, len(ids)).astype("f4"))),
        "kept_token_ids": [None] * num_rows,
        "full_logprobs": [None] * num_rows,
        "finish_reason": ["stop"] * num_rows,
        "error": [None] * num_rows,
        "reward": rng.integers(0, 2, num_rows).astype(np.float64),
        "reward_status": ["ok"] * num_rows,
        "reward_error": [None] * num_rows,
        "reward_parts": [None] * num_rows,
        "metadata": [json.dumps({"answer": f"{start + index}", "level": int(index % 5)}) for index in repeat],
    }
    arrays = [
        values if isinstance(values, pa.Array) else pa.array(values, field.type)
        for field, values in zip(RESPONSE_SCHEMA, columns.values(), strict=True)
    ]
    return pa.table(arrays, schema=RESPONSE_SCHEMA)


def _seaweedfs(folder: Path) -> Any:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from contextlib import contextmanager

    from seaweedfs import BUCKET, S3Place, running_seaweedfs

    @contextmanager
    def running() -> Any:
        (folder / "seaweedfs").mkdir()
        with running_seaweedfs(folder / "seaweedfs") as server:
            place = S3Place(f"s3://{BUCKET}/reading", server.endpoint_url, *server.writer)
            yield place.url, place.storage_options

    return running()


if __name__ == "__main__":
    main(sys.argv[1:])
