"""A plan of a million prompts: what it takes in memory and time until the first shard is in an engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flow_builders import files_of, job_values, write_job
from prefect.settings import PREFECT_API_URL

FEW, MANY = 100_000, 1_000_000
_MAX_BYTES = 600 * 10**6
_MAX_SECONDS = 120
"""Twice what is promised, for the machine may be shared."""

_MAX_BYTES_A_PROMPT = 120
"""Of each prompt the digest of its id is kept, and of each shard its place in the plan."""


@dataclass(frozen=True, slots=True)
class Begun:
    """How long a command took to end, or to put its first shard into an engine, and the most memory it held by then."""

    seconds: float
    peak_bytes: int


def job_of_many(folder: Path, policy: Path, num_prompts: int) -> Path:
    """Write a job of so many prompts, 64 in a shard, into a folder of its own."""
    folder.mkdir()
    prompts = [f"What is {number} + {number * 7 % 1000}?" for number in range(num_prompts)]
    answers = [str(number + number * 7 % 1000) for number in range(num_prompts)]
    pq.write_table(pa.table({"prompt": prompts, "answer": answers}), folder / "prompts.parquet")
    values = job_values(policy, folder / "prompts.parquet", str(folder / "store"), shards__prompts_per_shard=64)
    return write_job(folder / "job.yaml", values)


def begin(job: Path, *options: str) -> Begun:
    """Run a job until it ends, or until its first shard was answered, and end it there."""
    log = job.with_suffix(".log")
    began = time.monotonic()
    with log.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "rollmill.cli", "run", str(job), *options],
            env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())},
            stdout=written,
            stderr=written,
        )
    peak = 0
    try:
        while process.poll() is None and not files_of(job.parent / "store", "generate"):
            assert time.monotonic() - began < 2 * _MAX_SECONDS, log.read_text()
            peak = max(peak, peak_bytes(process.pid))
            time.sleep(0.05)
        seconds = time.monotonic() - began
    finally:
        for one in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            one.kill()
        process.send_signal(signal.SIGKILL)
        status = process.wait()
    assert status in (0, -signal.SIGKILL), log.read_text()
    return Begun(seconds, peak)


def peak_bytes(pid: int) -> int:
    """Return the greatest resident memory of a process so far; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("options", [["--dry-run"], []], ids=["dry run", "run"])
def test_a_million_prompts_start_in_bounded_memory_and_time(policy: Path, tmp_path: Path, options: list[str]) -> None:
    few, many = (begin(job_of_many(tmp_path / str(number), policy, number), *options) for number in (FEW, MANY))
    sys.stdout.write(f"{options or ['run']}: {FEW:,} prompts {few}, {MANY:,} prompts {many}\n")
    assert many.peak_bytes < _MAX_BYTES
    assert (many.peak_bytes - few.peak_bytes) / (MANY - FEW) < _MAX_BYTES_A_PROMPT
    assert many.seconds < _MAX_SECONDS
