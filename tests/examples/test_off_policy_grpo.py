"""The off-policy trainer on a tiny policy: it learns from what is stored, and goes on after a kill."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch
from builders import byte_tokenizer, save_policy, tiny_model
from seaweedfs import S3Place

from rollmill import InferenceScheduler, RolloutGenerator, RolloutResult, RolloutStore

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


def sampled(temperature: float) -> RolloutResult:
    """Return rollouts of the tiny policy, the first answer of each group rewarded and the last one not scored."""
    scheduler = InferenceScheduler(tiny_model(), byte_tokenizer(), max_batch_size=8, max_seq_len=64, device="cpu")
    generator = RolloutGenerator(scheduler, byte_tokenizer(), max_tokens=12, group_size=4, temperature=temperature)
    raw = generator.generate({"prompts": ["one", "twenty two", "3"]})
    rewards = torch.tensor([[1.0, 0.0, 0.0, float("nan")]]).repeat(3, 1)
    return RolloutResult(**{name: getattr(raw, name) for name in raw.__dataclass_fields__}, rewards=rewards)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_importance_ratio_of_unchanged_weights_is_one(temperature: float) -> None:
    result = sampled(temperature)
    with torch.no_grad():
        new = example().response_logprobs(tiny_model(), result, torch.arange(12), temperature).view(3, 4, -1)
    mask = result.response_mask
    torch.testing.assert_close(new[mask], result.logprobs_old[mask], atol=1e-4, rtol=0)
    assert not new[~mask].any()


def test_a_step_raises_what_was_rewarded_and_reads_no_unscored_answer() -> None:
    result, model, trainer = sampled(1.0), tiny_model(), example()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    figures = trainer.learn(model, optimizer, result, argparse.Namespace(temperature=1.0))
    assert figures["reward"] == pytest.approx(1 / 3)
    assert abs(figures["kl"]) < 1e-6
    assert figures["clip_share"] == 0
    assert figures["effective_sample_share"] == pytest.approx(1, abs=1e-3)
    with torch.no_grad():
        new = trainer.response_logprobs(model, result, torch.arange(12), 1.0).view(3, 4, -1)
    gains = ((new - result.logprobs_old) * result.response_mask).sum(-1)
    assert gains[:, 0].sum() > 0 > gains[:, 1:3].sum()
    poisoned = sampled(1.0)
    poisoned.logprobs_old[:, 3] = float("nan")
    other = tiny_model()
    trainer.learn(other, torch.optim.SGD(other.parameters(), lr=0.05), poisoned, argparse.Namespace(temperature=1.0))
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


def test_a_minibatch_of_equal_rewards_teaches_nothing() -> None:
    result, model, trainer = sampled(1.0), tiny_model(), example()
    result.rewards[:] = 1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    figures = trainer.learn(model, optimizer, result, argparse.Namespace(temperature=1.0))
    assert figures == {"reward": 1.0, "kl": 0.0, "clip_share": 0.0, "effective_sample_share": 1.0}
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), tiny_model().parameters(), strict=True))


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
    assert sorted(set(steps)) == [0, 1, 2, 3]
    assert steps[-1] == 3
    assert len(steps) <= 5  # a checkpoint is taken every two steps, so one is done again at most
    assert all(float(row["staleness"]) == int(row["step"]) % 2 for row in curve(folder))
    assert all(int(row["is_fresh"]) == (int(row["step"]) % 2 == 0) for row in curve(folder))


@pytest.mark.slow
def test_rollouts_may_lie_on_s3(tmp_path: Path, s3: S3Place) -> None:
    policy = save_policy(tmp_path / "policy")
    arguments = [*command(tmp_path / "run", policy), "--store", s3.url]
    result = subprocess.run(
        arguments, capture_output=True, text=True, timeout=150, check=True, env=os.environ | s3.environment
    )
    assert "held-out reward" in result.stdout
    assert [int(row["step"]) for row in curve(tmp_path / "run")] == [0, 1, 2, 3]
    assert RolloutStore(s3.url, s3.storage_options).latest().policy_version == 2
