"""From a trainer's announcement to its reader: event, automation, worker, run, published version."""

from __future__ import annotations

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
