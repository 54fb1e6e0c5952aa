"""TRL's trainers take an exported set as it is. Run by `make test-trl`, which gives TRL an environment of its own."""

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

from rollmill.storage.objects import open_objects
from rollmill.storage.store import RolloutStore
from rollmill.tasks.export.exporting import export_training_set

TRL_PYTHON = os.environ.get("ROLLMILL_TRL_PYTHON", "")
WORKER = Path(__file__).parents[1] / "trl_worker.py"

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
