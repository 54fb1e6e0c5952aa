"""A program that reads a store may end at any moment, in any way, and ends as it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import exit_worker
import pytest
from reading_builders import publish
from store_builders import Place


@pytest.mark.parametrize("times", [20, pytest.param(5 * exit_worker.NUM_WAYS, marks=pytest.mark.slow)])
def test_a_program_that_ends_in_the_middle_of_reading_ends_cleanly(tmp_path: Path, times: int) -> None:
    objects = Place(str(tmp_path / "store")).objects()
    for run in ("one", "other"):
        publish(objects, run, num_prompts=300, prompts_per_shard=100)
    done = subprocess.run(
        [sys.executable, exit_worker.__file__, str(tmp_path), str(times)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert (done.returncode, done.stderr) == (0, "")
    statuses = [int(line) for line in done.stdout.splitlines()]
    assert len(statuses) == times
    for number, status in enumerate(statuses):
        _, how = exit_worker.way(number)
        said = (tmp_path / f"{number}.err").read_text()
        assert (number, status) == (number, exit_worker.STATUSES[how]), said
        assert is_traceback_of_the_error(said) if how == "raise" else said == "", (number, said)


def is_traceback_of_the_error(said: str) -> bool:
    first, *middle, last = said.splitlines()
    return (
        first == "Traceback (most recent call last):"
        and all(line.startswith("  ") for line in middle)
        and last == "ValueError: in the middle"
    )
