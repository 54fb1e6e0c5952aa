"""From a trainer's announcement to its reader: event, automation, worker, run, published version."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
from builders import save_policy
from flow_builders import job_values
from prefect.flows import EntrypointType
from prefect_stack import POOL, PrefectStack, wait_until, worker

import rollmill
from rollmill.flows.announced_policies import ensure_rollout_on_announcement
from rollmill.flows.rollout import rollout
from rollmill.storage.cached_runner import CachedRolloutRunner
from rollmill.storage.store import RolloutStore

TRAINER = Path(__file__).parents[2] / "examples" / "off_policy_grpo.py"


def num_versions(store: Path) -> int:
    return len(list(store.glob("log/*.json")))


@pytest.mark.slow
def test_an_announced_policy_is_run_published_and_seen_by_the_trainer_s_reader(
    stack: PrefectStack, policy: Path, prompts: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    job = job_values(policy, prompts, str(store), name="followed")
    deployed = rollout.to_deployment(
        "followed", work_pool_name=POOL, entrypoint_type=EntrypointType.MODULE_PATH, parameters={"job": job}
    ).apply()
    assert isinstance(deployed, UUID)
    ensure_rollout_on_announcement("rollout/followed", name="arithmetic")
    reader = CachedRolloutRunner(RolloutStore(store), rollout_interval=1, prompts_per_batch=24)
    newer = save_policy(tmp_path / "newer", seed=1)
    seen = []
    with worker(stack, "machine"):
        for version, weights in ((11, policy), (12, newer)):
            before = num_versions(store)
            rollmill.announce_policy(str(weights), version, name="someone-else-s")
            rollmill.announce_policy(str(weights), version, name="arithmetic")
            wait_until(lambda before=before: num_versions(store) > before)  # type: ignore[misc]
            result, is_fresh = reader()
            reader.step()
            seen.append((result.policy_version, is_fresh, result.rewards.numel()))
    assert seen == [(11, True, 96), (12, True, 96)]
    assert [entry.run_id for entry in RolloutStore(store).latest().runs(9)] == ["followed-v12", "followed-v11"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_example_trainer_learns_from_rollouts_that_its_announcements_start(
    stack: PrefectStack, policy: Path, prompts: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "grpo"
    job = job_values(policy, prompts, str(folder / "rollouts"), name="elsewhere")
    rollout.to_deployment(
        "elsewhere", work_pool_name=POOL, entrypoint_type=EntrypointType.MODULE_PATH, parameters={"job": job}
    ).apply()
    ensure_rollout_on_announcement("rollout/elsewhere", name="learner")
    small = ["--steps", "4", "--interval", "2", "--prompts-per-round", "4", "--prompts-per-batch", "2"]
    where = ["--folder", str(folder), "--policy", str(policy), "--announce", "learner"]
    with worker(stack, "machine"):
        subprocess.run([sys.executable, str(TRAINER), *where, *small], env=stack.environment, timeout=360, check=True)
    steps = list(csv.DictReader((folder / "curve.csv").read_text().splitlines()))
    assert [(row["is_fresh"], float(row["staleness"])) for row in steps] == [("1", 0), ("0", 1), ("1", 0), ("0", 1)]
    runs = RolloutStore(folder / "rollouts").latest().runs(9)
    assert [entry.run_id for entry in runs] == ["elsewhere-v2", "elsewhere-v0"]
