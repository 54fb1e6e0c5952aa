"""The README's trainer works as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from builders import byte_tokenizer, save_policy, tiny_model
from store_builders import row_of, table_of, write_rows

from rollmill.storage.objects import Objects, open_objects
from rollmill.storage.plan import Plan, ShardRange
from rollmill.storage.publish import publish_run
from rollmill.storage.results import RawRollout
from rollmill.storage.runs import RunStore
from rollmill.tasks.generation.generator import RolloutGenerator
from rollmill.tasks.generation.scheduler import InferenceScheduler

README = (Path(__file__).parents[1] / "README.md").read_text()
NUM_PROMPTS, GROUP_SIZE = 5, 4


@pytest.mark.timeout(180)
def test_the_printed_trainer_trains(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(import sys\n.*?)```", README, re.DOTALL)
    assert program.count("\n") <= 36
    save_policy(tmp_path / "policy")
    _publish(open_objects(str(tmp_path / "rollouts")))
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
    assert ratios[-1] != 1.0


def _lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return done.stdout.splitlines()


def _publish(objects: Objects) -> None:
    """Publish answers of the tiny policy, as policy version 7."""
    tokenizer = byte_tokenizer()
    generator = RolloutGenerator(
        InferenceScheduler(tiny_model(), tokenizer), tokenizer, max_tokens=6, group_size=GROUP_SIZE, seed=0
    )
    raw = generator.generate({"prompt": [f"question {'x' * number}" for number in range(NUM_PROMPTS)]})
    plan = Plan("run", {}, (ShardRange(0, 0, NUM_PROMPTS),), GROUP_SIZE)
    runs = RunStore(objects, "run")
    runs.open_plan(plan)
    rows = [_row(raw, prompt, sample) for prompt in range(NUM_PROMPTS) for sample in range(GROUP_SIZE)]
    write_rows(runs, 0, table_of(rows))
    publish_run(objects, plan, "generate", policy_version=7)


def _row(raw: RawRollout, prompt: int, sample: int) -> dict[str, object]:
    kept = raw.response_mask[prompt, sample]
    return row_of(
        prompt,
        sample,
        policy_version=7,
        prompt_token_ids=raw.prompts[prompt][raw.prompt_mask[prompt]].tolist(),
        response_token_ids=raw.responses[prompt, sample][kept].tolist(),
        logprobs=raw.logprobs_old[prompt, sample][kept].tolist(),
        finish_reason=raw.finish_reasons[prompt][sample],
        reward=float(sample % 2),
    )
