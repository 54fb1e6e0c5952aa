"""Jobs for a tiny policy, and what their stores hold, for tests of flows and of the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from builders import save_policy

from rollmill.flows.job import RolloutJob
from rollmill.storage.store import RolloutStore

GROUP_SIZE = 4
PROMPTS_PER_SHARD = 3


def write_prompts(path: Path, num_prompts: int = 8) -> Path:
    """Write a prompt dataset with a column `answer`."""
    rows = [{"prompt": f"Say {number}.", "answer": str(number)} for number in range(num_prompts)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def unloadable_policy(folder: Path) -> Path:
    """Write a policy that can be checked but not loaded: whoever loads its weights fails."""
    save_policy(folder)
    (folder / "model.safetensors").write_bytes(b"these are no weights" * 100)
    return folder


def job_values(policy: Path, prompts: Path, store: str, **sections: Any) -> dict[str, Any]:
    """Return a job of 8 prompts in 3 shards with 4 answers each; the reward is 1 for about half of them.

    A keyword replaces a whole field; `sampling__seed=1` only the seed.
    """
    values: dict[str, Any] = {
        "name": "tiny",
        "store": store,
        "policy": {"model": str(policy), "version": 3, "dtype": "float32"},
        "prompts": {"source": str(prompts)},
        "sampling": {"group_size": GROUP_SIZE, "max_tokens": 12, "seed": 5},
        "rewards": [{"type": "regex", "pattern": "[a-m]"}],
        "shards": {"prompts_per_shard": PROMPTS_PER_SHARD},
        "engine": {"max_batch_size": 8, "devices": "cpu"},
    }
    for name, value in sections.items():
        section, _, key = name.partition("__")
        if key:
            values[section][key] = value
        else:
            values[section] = value
    return values


def job_of(policy: Path, prompts: Path, store: str, **sections: Any) -> RolloutJob:
    return RolloutJob.model_validate(job_values(policy, prompts, store, **sections))


def write_job(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(values))
    return path


def answers(store: RolloutStore) -> dict[tuple[str, int], tuple[list[int], list[float]]]:
    """Return token ids and log-probabilities of the latest version by (prompt_id, sample_index)."""
    rows = store.latest().read(["prompt_id", "sample_index", "response_token_ids", "logprobs"]).to_pylist()
    return {(row["prompt_id"], row["sample_index"]): (row["response_token_ids"], row["logprobs"]) for row in rows}


def files_of(store: Path, stage: str) -> dict[int, Path]:
    """Return the data files of a stage by shard; a stage may be named by how it begins."""
    return {int(path.name[:5]): path for path in sorted(store.glob(f"data/*/{stage}*/*.parquet"))}


def remove_all(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink()
