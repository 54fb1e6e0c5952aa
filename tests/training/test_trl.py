"""TRL's trainers take exported sets and stored rollouts. Run by `make test-trl`: TRL has an environment of its own."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import save_policy
from export_builders import config_of, publish_answers
from generated_builders import publish_generated

from rollmill.storage.objects import open_objects
from rollmill.storage.store import RolloutStore
from rollmill.tasks.export.exporting import export_training_set

TRL_PYTHON = os.environ.get("ROLLMILL_TRL_PYTHON", "")
WORKER = Path(__file__).parents[1] / "trl_worker.py"
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(not TRL_PYTHON, reason="needs TRL: make test-trl"),
    pytest.mark.timeout(600),
]


@pytest.mark.parametrize("training_format", ["sft", "dpo", "kto"])
def test_a_trainer_takes_two_steps_on_an_exported_set(tmp_path: Path, training_format: str) -> None:
    policy = save_policy(tmp_path / "policy")
    publish_answers(open_objects(str(tmp_path / "store")))
    manifest = export_training_set(
        RolloutStore(tmp_path / "store"), open_objects(str(tmp_path / "set")), config_of(training_format)
    ).manifest
    arguments = [TRL_PYTHON, WORKER, training_format, policy, tmp_path / "set", tmp_path / "scratch"]
    ended = subprocess.run(list(map(str, arguments)), cwd="/", capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    sys.stdout.write(f"{training_format}: {found}\n")
    assert found["steps"] == len(found["losses"]) == 2
    assert all(map(math.isfinite, [*found["losses"], found["eval_loss"]]))
    assert found["changed"] > 0
    assert found["records"] == manifest.splits["train"].records


def grpo_from_store(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the example on the store beside the policy."""
    arguments = [
        TRL_PYTHON, ROOT / "examples" / "trl_grpo_from_store.py", "--policy", tmp_path / "policy",
        "--store", tmp_path / "store", "--out", tmp_path / "out", "--prompts-per-batch", "2", *options,
    ]  # fmt: skip
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.run(list(map(str, arguments)), cwd=tmp_path, env=environment, capture_output=True, text=True)


def test_grpo_trains_on_stored_rollouts_by_the_ratio_to_their_stored_logprobs(tmp_path: Path) -> None:
    save_policy(tmp_path / "policy")
    publish_generated(open_objects(str(tmp_path / "store")), temperature=0.7)
    ended = grpo_from_store(tmp_path, "--steps", "2", "--learning-rate", "0.01")
    assert ended.returncode == 0, ended.stderr
    steps = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"loss"')]
    sys.stdout.write(f"grpo: {steps}\n")
    assert [step["reward"] for step in steps] == [0.5, 0.5]  # what is stored, not what TRL could make of a placeholder
    clipped = [step["clip_ratio/region_mean"] for step in steps]
    assert clipped[0] == 0  # unchanged weights: the ratio is 1 at a temperature of 0.7
    assert clipped[1] > 0.1  # without the stored log-probabilities TRL would take its own, and never clip


def test_rollouts_whose_distribution_trl_cannot_compute_are_refused(tmp_path: Path) -> None:
    save_policy(tmp_path / "policy")
    publish_generated(open_objects(str(tmp_path / "store")), top_p=0.8)
    ended = grpo_from_store(tmp_path, "--steps", "2")
    assert ended.returncode == 1
    assert "TRL computes log-probabilities at a temperature alone" in ended.stderr
