"""Five hundred small shards: neither the flow nor its engine keeps what is stored already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from flow_builders import job_values, write_job
from prefect.settings import PREFECT_API_URL

from rollmill.storage.store import RolloutStore

NUM_SHARDS = 500
_SETTLED = 100
"""Shards after which imports, thread pools and caches have the size that they keep."""

_TEXT_BYTES = 100_000
_PROMPT_BYTES = 300
_MAX_GROWTH = 24 * 2**20
"""Of 400 shards whose rows hold 2 × 100 KB of text each, and 150 KB of keys and values in the engine while they are
worked on: keeping either would be 60 MB and more."""


@pytest.fixture
def job_file(policy: Path, tmp_path: Path) -> Path:
    source = tmp_path / "prompts.jsonl"
    with source.open("w") as lines:
        for number in range(NUM_SHARDS):
            row = {"prompt": f"{number} ".ljust(_PROMPT_BYTES, "x"), "context": f"{number}".ljust(_TEXT_BYTES, "y")}
            lines.write(f"{json.dumps(row)}\n")
    values = job_values(policy, source, str(tmp_path / "store"), shards__prompts_per_shard=1)
    return write_job(tmp_path / "job.yaml", {**values, "sampling": {"group_size": 2, "max_tokens": 4, "seed": 5}})


def engine_of(flow: psutil.Process) -> psutil.Process:
    (engine,) = (child for child in flow.children() if "spawn_main" in " ".join(child.cmdline()))
    return engine


@pytest.mark.slow
def test_memory_stays_flat_over_many_shards(job_file: Path) -> None:
    store = job_file.parent / "store"
    sampled: dict[int, tuple[int, int]] = {}
    process = subprocess.Popen(
        [sys.executable, "-m", "rollmill.cli", "run", str(job_file)],
        env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    flow, engine = psutil.Process(process.pid), None
    deadline = time.monotonic() + 150
    while (num_scored := len(list(store.glob("runs/tiny-v3/score-*/*.json")))) < NUM_SHARDS - 10:
        assert process.poll() is None
        assert time.monotonic() < deadline
        if num_scored >= _SETTLED:
            engine = engine or engine_of(flow)
            sampled[num_scored] = (flow.memory_info().rss, engine.memory_info().rss)
        time.sleep(0.1)
    assert process.wait(timeout=60) == 0
    first, last = sampled[min(sampled)], sampled[max(sampled)]
    for name, before, after in zip(("flow", "engine"), first, last, strict=True):
        assert after - before < _MAX_GROWTH, name
    assert max(sampled) - min(sampled) > 300
    version = RolloutStore(store).latest()
    assert (version.num_groups, len(version.files)) == (NUM_SHARDS, NUM_SHARDS)
