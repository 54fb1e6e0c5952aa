"""Two real processes that train together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import rank_worker
from reading_builders import all_ids, publish
from store_builders import Place


def outcomes(tmp_path: Path, scenario: str, world_size: int = 2) -> list[dict[str, Any]]:
    """Run one process a rank and return what each printed."""
    publish(Place(str(tmp_path / "store")).objects(), num_prompts=20)
    shared = [str(tmp_path / "meeting"), str(tmp_path / "store"), str(tmp_path / "cache"), scenario]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, rank_worker.__file__, str(rank), str(world_size), *shared],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(world_size)
    ]
    finished = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * world_size, finished
    return [json.loads(printed.splitlines()[-1]) for printed, _ in finished]


def test_ranks_change_versions_together_and_share_every_epoch(tmp_path: Path) -> None:
    first, second = outcomes(tmp_path, "follow")
    assert [seen[:2] for seen in first["seen"]] == [seen[:2] for seen in second["seen"]]
    versions = [seen[0] for seen in first["seen"]]
    assert versions == [1] * versions.count(1) + [2] * versions.count(2)
    assert versions.count(2) >= 2
    assert versions.index(2) % 3 == 0
    sizes = [[len(seen[2]) for seen in rank["seen"]] for rank in (first, second)]
    assert sizes[0][:3] == sizes[1][:3] == [3, 3, 3]
    names = [name for rank in (first, second) for seen in rank["seen"][: versions.index(2)][:4] for name in seen[2]]
    assert len(set(names)) == len(names) >= 18
    assert set(names) <= set(all_ids(20))
    assert first["state"] == second["state"]


def test_an_error_that_rank_0_meets_is_raised_on_every_rank(tmp_path: Path) -> None:
    first, second = outcomes(tmp_path, "too old")
    assert first["seen"][-1] == second["seen"][-1]
    assert "the trainer is at 2 and accepts an age of 0" in first["seen"][-1]
    assert len(first["seen"]) == len(second["seen"]) == 5
