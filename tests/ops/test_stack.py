"""The script that brings the whole stack up: Postgres, a Prefect server, S3, a worker, and the nightly in them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from prefect_stack import wait_until

ROOT = Path(__file__).parents[2]
STACK = [sys.executable, str(ROOT / "deployments" / "stack.py")]


def processes_of(folder: Path) -> list[str]:
    """Return the command of every process that was told of a folder, or runs in it."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        command, environment = process.info["cmdline"] or [], process.info["environ"] or {}
        if any(str(folder) in word for word in command) or str(folder) in environment.get("PREFECT_HOME", ""):
            found.append(" ".join(command))
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_stack_runs_the_nightly_by_its_schedule_and_leaves_nothing_behind(
    policy: Path, prompts: Path, tmp_path: Path
) -> None:
    changes = [
        f"policy.model={policy}",
        "policy.dtype=float32",
        f"prompts={json.dumps({'source': str(prompts)})}",
        "sampling={group_size: 4, max_tokens: 12}",
        "rewards=[{type: regex, pattern: '[a-m]'}]",
        "engine={max_batch_size: 8, devices: cpu}",
        "export.selection={min_reward: 1, keep_truncated: true}",  # the tiny policy seldom ends by itself
    ]
    options = [option for change in changes for option in ("--change", change)]
    folder = tmp_path / "stack"
    ended = subprocess.run(
        [*STACK, "--folder", str(folder), "--every", "20", *options],
        cwd=ROOT, capture_output=True, text=True, timeout=360, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    made, again = ended.stdout.split("again: ")
    assert "made 9 and changed 0 of 9" in made
    assert "nothing to change" in again
    assert "rejection-sampling-sums-sft-v0-" in again
    assert "Completed" in again
    assert "96" in again  # rows of the published version: 24 prompts, 4 answers each
    assert processes_of(folder) == []


@pytest.mark.slow
def test_a_stack_that_is_told_to_end_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "stack"
    with subprocess.Popen(
        [*STACK, "--folder", str(folder)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        assert any(line.startswith("prefect ") for line in process.stdout)
        assert processes_of(folder)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=90)
    assert process.returncode == 128 + signal.SIGTERM
    wait_until(lambda: processes_of(folder) == [], seconds=10)
