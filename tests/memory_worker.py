"""A process that reads a published version to its end, and tells the most memory that it has held."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from rollmill import CachedRolloutRunner, RolloutStore


def main() -> None:
    url, num_steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    runner = CachedRolloutRunner(RolloutStore(url), prompts_per_batch=8)
    tokens = groups = 0
    for _ in range(num_steps):
        result, _ = runner()
        groups += result.num_groups
        tokens += int(result.response_mask.sum())
        runner.step()
    found = {"peak": _peak(), "groups": groups, "tokens": tokens, "pandas": "pandas" in sys.modules}
    sys.stdout.write(json.dumps(found) + "\n")


def _peak() -> int:
    """Return the greatest resident memory so far, in bytes (getrusage would begin with that of the parent process)."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
