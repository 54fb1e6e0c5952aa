"""One rank of a small trainer, for tests with real torch.distributed processes.

Arguments: rank, world size, file to meet at, store, folder to cache in, the rank's scenario. Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import warnings
from datetime import timedelta

import torch.distributed as dist

from rollmill import CachedRolloutRunner, RolloutStore
from rollmill.errors import RollmillError
from rollmill.storage.objects import Objects


def main() -> None:
    rank, world_size, meeting, url, cache, scenario = sys.argv[1:]
    dist.init_process_group(
        "gloo", f"file://{meeting}", rank=int(rank), world_size=int(world_size), timeout=timedelta(seconds=60)
    )
    store = RolloutStore(url)
    runner = CachedRolloutRunner(
        store,
        rollout_interval=3,
        prompts_per_batch=3,
        rank=int(rank),
        world_size=int(world_size),
        cache_dir=cache,
        max_staleness=None if scenario == "follow" else 0,
        on_stale="raise",
        policy_version=1,
    )
    seen: list[object] = []
    try:
        for step in range(8):
            _meet_and_publish(step, rank, store.objects, scenario)
            result, is_fresh = runner()
            seen.append([result.policy_version, is_fresh, result.prompt_ids])
            runner.step(policy_version=2 if scenario == "too old" and step == 3 else None)
    except RollmillError as error:
        seen.append(str(error))
    sys.stdout.write(json.dumps({"seen": seen, "state": runner.state_dict()}) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def _meet_and_publish(step: int, rank: str, objects: Objects, scenario: str) -> None:
    """Publish another version between two steps, between the looks of the two ranks if each were to look itself."""
    if scenario == "follow" and step == 3 and rank == "1":
        from reading_builders import publish

        publish(objects, "b", policy_version=2)


if __name__ == "__main__":
    warnings.simplefilter("error")
    main()
