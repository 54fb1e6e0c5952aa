"""The README's trainer works as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from builders import save_policy
from generated_builders import publish_generated

from rollmill.storage.objects import open_objects

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.mark.timeout(180)
def test_the_printed_trainer_trains(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(import sys\n.*?)```", README, re.DOTALL)
    assert program.count("\n") <= 36
    save_policy(tmp_path / "policy")
    publish_generated(open_objects(str(tmp_path / "rollouts")))
    (tmp_path / "trainer.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "trainer.py", "policy", "./rollouts"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    steps = [re.search(r"step=(\d+) version 7 reward (\S+) ratio (\S+) loss=(\S+)", line) for line in _lines(done)]
    assert [step and int(step[1]) for step in steps] == list(range(16))
    rewards, ratios, losses = ([float(step[place]) for step in steps if step] for place in (2, 3, 4))
    assert all(0 < reward < 1 for reward in rewards)
    assert ratios[0] == pytest.approx(1, abs=1e-3)  # the trainer's logprobs are those that were stored
    assert torch.isfinite(torch.tensor(losses)).all()
    assert any(ratio != 1.0 for ratio in ratios[1:])  # and then the weights are others


def _lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return done.stdout.splitlines()
