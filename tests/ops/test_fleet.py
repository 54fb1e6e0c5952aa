"""A fleet on real workers, one of which is lost in the middle."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from flow_builders import answers, job_of
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.flows import EntrypointType
from prefect.settings import PREFECT_API_URL
from prefect_stack import POOL, PrefectStack, kill_tree, wait_until, worker

from rollmill.flows.rollout import rollout
from rollmill.storage.store import RolloutStore
from rollmill.storage.verify import verify_store

REWARDS = [{"type": "function", "path": "slow_rewards:score"}]


def num_scored(store: Path) -> int:
    return len(list(store.glob("runs/*/score-*/*.json")))


@pytest.mark.slow
@pytest.mark.timeout(230)
def test_a_fleet_that_loses_a_worker_ends_with_the_rows_of_a_run_alone(
    stack: PrefectStack, policy: Path, prompts: Path, slow_rewards: Path, tmp_path: Path
) -> None:
    assert PREFECT_API_URL.value() == stack.api_url
    deployed = rollout.to_deployment("member", work_pool_name=POOL, entrypoint_type=EntrypointType.MODULE_PATH).apply()
    assert isinstance(deployed, UUID)
    store = tmp_path / "store"
    fleet = {"size": 3, "deployment": "rollout/member", "seconds_without_a_shard": 45}
    shared = job_of(
        policy,
        prompts,
        str(store),
        rewards=REWARDS,
        fleet=fleet,
        shards__prompts_per_shard=1,
        publish={"every_shards": 8},
    )
    with ExitStack() as workers:
        processes = [workers.enter_context(worker(stack, f"machine-{n}", slow_rewards)) for n in range(3)]

        def lose_a_machine() -> None:
            wait_until(lambda: num_scored(store) >= 3 and bool(psutil.Process(processes[0].pid).children()))
            kill_tree(processes[0])

        killer = threading.Thread(target=lose_a_machine)
        killer.start()
        report = rollout(shared)
        killer.join()
        assert processes[0].poll() is not None
    assert report is not None
    assert (report.num_shards, report.figures.rows, report.figures.unscored) == (24, 96, 0)
    alone = job_of(policy, prompts, str(tmp_path / "alone"), rewards=REWARDS, shards__prompts_per_shard=24)
    rollout(alone)
    assert answers(RolloutStore(store)) == answers(RolloutStore(tmp_path / "alone"))
    assert verify_store(RolloutStore(store)).problems == ()
    assert RolloutStore(store).latest().entry.complete
    with get_client(sync_client=True) as client:
        members = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=["fleet:tiny-v3"])))
    states = [member.state.type.value for member in members if member.state is not None]
    assert states.count("COMPLETED") >= 3, states
    assert len(members) > 3, states
