"""Wall time of the whole flow over the scheduler alone, on the same prompts and the same policy, in one run.

The flow plans, generates, scores, writes, publishes and reports, with Prefect's records of it; the scheduler, in the
same kind of engine process, answers the same prompts as one piece of work and writes nothing. Both start their engine
and load the policy; the time that Prefect's server takes to start is not counted. Prints one JSON object.

    python benchmarks/flow.py [--policy MODEL] [--prompts 64] [--shards 8] [--group-size 8] [--max-tokens 32]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from pathlib import Path

from rollmill.flows.prefect_server import QUIET_PREFECT

os.environ.update(QUIET_PREFECT)  # before Prefect is imported

from rollmill.flows.job import RolloutJob
from rollmill.flows.prefect_server import prefect_server
from rollmill.flows.preflight import check_job
from rollmill.flows.rollout import rollout
from rollmill.tasks.generation.engine import start_engines
from rollmill.tasks.generation.seeds import row_seed
from rollmill.tasks.generation.types import PromptGroup
from rollmill.tasks.prompts.reading import read_prompts


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder, prefect_server() as server:
        assert server is not None, "unset PREFECT_API_URL: a server far away would be measured too"
        with server.in_use():
            jobs = [_job(options, Path(folder) / str(number)) for number in range(options.repeats)]
            pairs = [(_seconds_alone(job), _seconds_of_the_flow(job)) for job in jobs]
    alone, flow = (statistics.median(values) for values in zip(*pairs, strict=True))
    figures = {
        "policy": options.policy,
        "shards": options.shards,
        "rows": options.prompts * options.group_size,
        "repeats": options.repeats,
        "scheduler_seconds": round(alone, 2),
        "seconds_a_shard": round(flow / options.shards, 1),
        "flow_seconds": round(flow, 2),
        "ratio": round(flow / alone, 3),
    }
    print(json.dumps(figures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=1)
    return parser.parse_args()


def _job(options: argparse.Namespace, store: Path) -> RolloutJob:
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
            "sampling": {"group_size": options.group_size, "max_tokens": options.max_tokens},
            "rewards": [{"type": "last_number"}],
            "shards": {"prompts_per_shard": math.ceil(options.prompts / options.shards)},
        }
    )


def _seconds_alone(job: RolloutJob) -> float:
    """Answer the job's prompts by one engine, without a plan, shards, rewards or files."""
    renderer = check_job(job, writes=False).renderer
    rendered = [renderer.render(prompt) for prompt in read_prompts(job.prompts)]
    groups = [
        PromptGroup(
            key=prompt.prompt_id,
            input_ids=prompt.input_ids,
            seeds=[row_seed(job.sampling.seed, prompt.prompt_id, sample) for sample in range(job.sampling.group_size)],
            sampling=job.sampling.params(),
        )
        for prompt in rendered
    ]
    begin = time.monotonic()
    with start_engines(job.policy, job.engine) as engines:
        engines.generate(groups)
        return time.monotonic() - begin


def _seconds_of_the_flow(job: RolloutJob) -> float:
    begin = time.monotonic()
    rollout(job)
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
