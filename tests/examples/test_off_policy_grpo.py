"""The off-policy trainer on a tiny policy: it learns from what is stored, and goes on after a kill."""

from __future__ import annotations

import csv
import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch
from builders import save_policy

EXAMPLE = Path(__file__).parents[2] / "examples" / "off_policy_grpo.py"
SMALL = ["--steps", "4", "--interval", "2", "--prompts-per-round", "4", "--prompts-per-batch", "2"]


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("off_policy_grpo", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def curve(folder: Path) -> list[dict[str, str]]:
    path = folder / "curve.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def command(folder: Path, policy: Path) -> list[str]:
    return [sys.executable, str(EXAMPLE), "--folder", str(folder), "--policy", str(policy), *SMALL]


def test_advantages_leave_null_rewards_out_of_their_groups() -> None:
    rewards = torch.tensor([[1.0, 0.0, float("nan"), 1.0], [0.5, 0.5, 0.5, 0.5]])
    advantages = example().group_advantages(rewards)
    assert torch.isnan(advantages).tolist() == [[False, False, True, False], [False] * 4]
    assert advantages[0].nansum().abs() < 1e-5
    assert advantages[0, 0] > 0 > advantages[0, 1]
    assert advantages[1].abs().max() == 0


@pytest.mark.slow
def test_a_killed_trainer_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    policy = save_policy(tmp_path / "policy")
    folder = tmp_path / "run"
    process = subprocess.Popen(command(folder, policy), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(curve(folder)) < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    result = subprocess.run(command(folder, policy), capture_output=True, text=True, timeout=150, check=True)
    assert "held-out reward" in result.stdout
    steps = [int(row["step"]) for row in curve(folder)]
    assert sorted(set(steps)) == [1, 2, 3, 4]
    assert steps[-1] == 4
    assert len(steps) <= 5  # a checkpoint is taken every two steps, so one is done again at most
    assert all(abs(float(row["kl"])) < 1e-6 for row in curve(folder))
    assert {row["version"] for row in curve(folder)} == {"0", "1"}
