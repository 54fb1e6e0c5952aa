"""A process that reads a published version to its end, and tells the most memory that it has held."""

from __future__ import annotations

import json
import resource
import sys

import torch

from rollmill import CachedRolloutRunner, RolloutStore


def main() -> None:
    url, num_steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    runner = CachedRolloutRunner(RolloutStore(url), prompts_per_batch=8)
    before = _peak()
    tokens = groups = 0
    for _ in range(num_steps):
        result, _ = runner()
        groups += result.num_groups
        tokens += int(result.response_mask.sum())
        runner.step()
    sys.stdout.write(json.dumps({"before": before, "peak": _peak(), "groups": groups, "tokens": tokens}) + "\n")


def _peak() -> int:
    """Return this process's greatest resident memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
