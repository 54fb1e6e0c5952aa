"""Whole jobs on vLLM, through the flow."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner
from vllm_builders import ENGINE, POLICY

from rollmill.cli.main import app
from rollmill.errors import PlanMismatchError
from rollmill.flows.job import RolloutJob
from rollmill.flows.rollout import rollout
from rollmill.storage.store import RolloutStore
from rollmill.storage.verify import verify_store

NUM_PROMPTS, GROUP_SIZE, PROMPTS_PER_SHARD = 16, 4, 4


def job_in(folder: Path, **engine: Any) -> RolloutJob:
    """Return a job of 16 prompts in 4 shards, the last of which is longer than the engine allows."""
    rows = [{"prompt": f"What is {number} + {number}?", "answer": str(2 * number)} for number in range(NUM_PROMPTS - 1)]
    rows.append({"prompt": "word " * 400, "answer": "none"})
    (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return RolloutJob.model_validate(
        {
            "name": "vllm",
            "store": str(folder / "store"),
            "policy": {"model": POLICY, "dtype": "float32"},
            "prompts": {"source": str(folder / "prompts.jsonl")},
            "sampling": {"group_size": GROUP_SIZE, "max_tokens": 24, "temperature": 0.8, "top_p": 0.95, "seed": 7},
            "rewards": [{"type": "last_number"}],
            "shards": {"prompts_per_shard": PROMPTS_PER_SHARD},
            "engine": {**ENGINE, **engine},
        }
    )


def markers(job: RolloutJob) -> dict[str, bytes]:
    """Return the commit of every shard that is generated."""
    return {path.name: path.read_bytes() for path in Path(job.store).glob("runs/*/generate/*.json")}


def audited(job: RolloutJob) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["verify", job.store, "--logprobs", "--json", "--sample", "32"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])["logprobs"]
    return found


@pytest.mark.usefixtures("prefect")
def test_a_whole_job_runs_on_vllm_and_its_logprobs_are_sound(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    report = rollout(job)
    version = RolloutStore(job.store).latest()
    table = version.read(["prompt_id", "finish_reason", "error", "response_token_ids", "logprobs"])
    assert (report.new_rows, table.num_rows) == (NUM_PROMPTS * GROUP_SIZE, NUM_PROMPTS * GROUP_SIZE)
    failed = [row for row in table.to_pylist() if row["finish_reason"] == "error"]
    assert len(failed) == GROUP_SIZE
    assert all("leaves no room for an answer" in row["error"] for row in failed)
    assert all(len(row["response_token_ids"]) == len(row["logprobs"]) for row in table.to_pylist())
    assert json.loads(table.schema.metadata[b"engine"]) == {"backend": "vllm"}
    assert table.schema.metadata[b"logprob_mode"] == b"processed"
    found = audited(job)
    assert found["same_weights"]
    assert found["result"]["num_answers"] == 32
    with pytest.raises(PlanMismatchError, match=r'engine.backend was "vllm", now not set'):
        rollout(job_in(tmp_path, backend="torch", memory_share=None))


@pytest.mark.usefixtures("prefect")
def test_a_killed_engine_costs_only_the_shards_in_progress(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    kept: dict[str, bytes] = {}

    def kill_the_engine() -> None:
        while not kept:
            kept.update(markers(job))
        for child in psutil.Process().children(recursive=True):
            if "spawn_main" in " ".join(child.cmdline()):
                child.kill()

    killer = threading.Thread(target=kill_the_engine)
    killer.start()
    report = rollout(job)
    killer.join()
    assert 0 < len(kept) < NUM_PROMPTS // PROMPTS_PER_SHARD
    after = markers(job)
    assert len(after) == NUM_PROMPTS // PROMPTS_PER_SHARD
    assert {name: after[name] for name in kept} == kept
    assert report.figures.failed == GROUP_SIZE
    assert verify_store(RolloutStore(job.store)).problems == ()
    audited(job)
