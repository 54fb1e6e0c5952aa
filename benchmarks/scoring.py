"""What scoring costs: whether it holds up generation, and how many answers a second the cheap rules score.

First a job whose reward takes as long as its generation: wall time of the job, of its generation alone, and of its
scoring alone, which is done one answer at a time as by a single reward model on a device of its own. Then the rules, on
one core with everything that isolates them: by wall time, and by the CPU time of this process and of the reward's.
Prints one JSON object, with the load of the machine before and after.

    python benchmarks/scoring.py [--policy MODEL] [--prompts 128] [--shards 32] [--max-tokens 32] [--answers 20000]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rollmill.flows.prefect_server import QUIET_PREFECT

os.environ.update(QUIET_PREFECT)  # before Prefect is imported

import psutil
import pyarrow as pa
import torch
from pydantic import TypeAdapter
from torch import Tensor

from rollmill.flows.job import RolloutJob
from rollmill.flows.prefect_server import prefect_server
from rollmill.flows.rollout import rollout
from rollmill.storage.schema import RESPONSE_SCHEMA, REWARD_OK, REWARD_PENDING
from rollmill.tasks.rewards.base import BaseRewardModel
from rollmill.tasks.rewards.config import RewardConfigs
from rollmill.tasks.rewards.scoring import build_rewards

GROUP_SIZE = 8
RULES: dict[str, dict[str, Any]] = {
    "last_number": {"type": "last_number"},
    "exact_match": {"type": "exact_match"},
    "contains": {"type": "contains"},
    "format": {"type": "format"},
    "length": {"type": "length", "max": 64},
    "length_penalty": {"type": "length_penalty", "max": 64, "buffer": 16},
    "regex (isolated)": {"type": "regex", "pattern": r"answer is (\d+)", "group": 1},
    "function as verl calls it (isolated)": {"type": "function", "path": "scoring:compute_score"},
    "function as TRL calls it (isolated)": {"type": "function", "path": "scoring:reward"},
}


class OneAtATime(BaseRewardModel):
    """Takes so many seconds for each answer, and scores one at a time."""

    lock = threading.Lock()

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def score(self, prompts: list[str], responses: list[list[str]]) -> Tensor:  # type: ignore[override] # noqa: ARG002
        with self.lock:
            time.sleep(self._seconds * sum(map(len, responses)))
        return torch.ones(len(responses), len(responses[0]))


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:  # noqa: ARG001
    """A function as verl calls it."""
    return float(ground_truth in solution_str)


def reward(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float]:  # noqa: ARG001
    """A function as TRL calls it."""
    return [float(right in text) for text, right in zip(completions, answer, strict=True)]


def main() -> None:
    options = _options()
    load_before = os.getloadavg()
    overlap = _overlap(options) if options.prompts else {}
    rules = _rules(options.answers)
    figures = {
        "cores": os.cpu_count(),
        "load_before": round(load_before[0], 1),
        "load_after": round(os.getloadavg()[0], 1),
        "overlap": overlap,
        "rules_per_second": rules,
    }
    print(json.dumps(figures, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=128, help="0 leaves the job out")
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--answers", type=int, default=20000)
    return parser.parse_args()


def _overlap(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, prefect_server() as server:
        assert server is not None, "unset PREFECT_API_URL: a server far away would be measured too"
        with server.in_use():
            generation = _seconds_of(_job(options, Path(folder, "one"), {"type": "length", "max": 64}))
            seconds = generation / (options.prompts * GROUP_SIZE)
            slow = {"type": "function", "path": "scoring:OneAtATime", "options": {"seconds": seconds}}
            scoring = _seconds_of(_job(options, Path(folder, "one"), slow))
            both = _seconds_of(_job(options, Path(folder, "two"), slow))
    return {
        "policy": options.policy,
        "rows": options.prompts * GROUP_SIZE,
        "shards": options.shards,
        "generation_seconds": round(generation, 2),
        "scoring_seconds": round(scoring, 2),
        "job_seconds": round(both, 2),
        "ratio_to_the_longer": round(both / max(generation, scoring), 3),
        "ratio_to_their_sum": round(both / (generation + scoring), 3),
    }


def _job(options: argparse.Namespace, store: Path, rewarded: dict[str, Any]) -> RolloutJob:
    return RolloutJob.model_validate(
        {
            "name": "benchmark",
            "store": str(store),
            "policy": {"model": options.policy},
            "prompts": {
                "source": "reasoning_gym:chain_sum",
                "limit": options.prompts,
                "options": {"min_terms": 2, "max_terms": 2},
            },
            "sampling": {"group_size": GROUP_SIZE, "max_tokens": options.max_tokens},
            "rewards": [rewarded],
            "shards": {"prompts_per_shard": math.ceil(options.prompts / options.shards)},
        }
    )


def _seconds_of(job: RolloutJob) -> float:
    begin = time.monotonic()
    report = rollout(job)
    assert report.figures.unscored == 0, report.figures.reasons
    return time.monotonic() - begin


def _rules(num_answers: int) -> dict[str, dict[str, int]]:
    if sys.platform == "linux":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # and so for all that is started from here on
    table = _answers(num_answers)
    return {name: _rate(rule, table) for name, rule in RULES.items()}


def _rate(rule: dict[str, Any], table: pa.Table) -> dict[str, int]:
    scorer = build_rewards(TypeAdapter(RewardConfigs).validate_python([rule]))
    scorer.score_table(table.slice(0, 64))  # what starts once, starts here
    cpu, begin = _cpu_seconds(), time.monotonic()
    scored = scorer.score_table(table)
    wall, cpu = time.monotonic() - begin, _cpu_seconds() - cpu
    assert scored["reward_status"].unique().to_pylist() == [REWARD_OK]
    return {"wall": round(table.num_rows / wall), "cpu": round(table.num_rows / cpu)}


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of all that it started and that are alive."""
    this = psutil.Process()
    times = [process.cpu_times() for process in [this, *this.children(recursive=True)]]
    return sum(spent.user + spent.system for spent in times)


def _answers(count: int) -> pa.Table:
    text = "Let me think. <think>12 plus 30</think> is 42, so the final answer is 42. " * 3
    shared = {
        "run_id": "run",
        "policy_version": 0,
        "seed": 0,
        "prompt_text": "What is 12 + 30? End with the final number.",
        "response_text": text,
        "prompt_token_ids": list(range(24)),
        "response_token_ids": list(range(64)),
        "logprobs": [-0.5] * 64,
        "finish_reason": "stop",
        "reward_status": REWARD_PENDING,
        "metadata": json.dumps({"answer": "42"}),
    }
    rows = [{**shared, "prompt_id": str(n // GROUP_SIZE), "sample_index": n % GROUP_SIZE} for n in range(count)]
    return pa.Table.from_pylist(rows, schema=RESPONSE_SCHEMA)


if __name__ == "__main__":
    main()
