"""Published versions and runners for tests of reading back."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Condition, current_thread
from typing import Any

from store_builders import GROUP_SIZE, failed_row, in_memory, plan_of, row_of, table_of, write_rows

from rollmill.storage.cached_runner import CachedRolloutRunner
from rollmill.storage.objects import Objects
from rollmill.storage.publish import publish_run
from rollmill.storage.results import RolloutResult
from rollmill.storage.runs import RunStore
from rollmill.storage.store import RolloutStore


def publish(
    objects: Objects,
    run_id: str = "run",
    *,
    num_prompts: int = 20,
    prompts_per_shard: int = 3,
    policy_version: int = 1,
    unscored: Iterable[tuple[int, int]] = (),
    failed: Iterable[int] = (),
    **metadata: str,
) -> RolloutStore:
    """Publish a run of sound rows, but for the rewards of (prompt, sample) `unscored` and the prompts `failed`."""
    plan = plan_of(run_id, num_prompts, prompts_per_shard)
    runs = RunStore(objects, run_id)
    runs.open_plan(plan)
    without: dict[str, Any] = {"reward": None, "reward_status": "failed", "reward_error": "timed out"}
    missing, broken = set(unscored), set(failed)
    for shard in plan.shards:
        rows = [
            {**failed_row(prompt, sample, run_id), "policy_version": policy_version}
            if prompt in broken
            else row_of(
                prompt,
                sample,
                run_id,
                policy_version=policy_version,
                **(without if (prompt, sample) in missing else {}),
            )
            for prompt in range(shard.start, shard.stop)
            for sample in range(GROUP_SIZE)
        ]
        write_rows(runs, shard.index, table_of(rows), **metadata)
    publish_run(objects, plan, "generate", policy_version=policy_version)
    return RolloutStore(objects.url)


def published(**options: Any) -> RolloutStore:
    """Return a store in memory with one version."""
    return publish(in_memory(), **options)


def take(runner: CachedRolloutRunner, number: int) -> list[RolloutResult]:
    """Return the minibatches of so many steps."""
    results = []
    for _ in range(number):
        results.append(runner()[0])
        runner.step()
    return results


def ids(results: Iterable[RolloutResult]) -> list[str]:
    """Return the prompts of all minibatches, in order."""
    return [prompt_id for result in results for prompt_id in result.prompt_ids]


def ranks(store: RolloutStore, world_size: int, **options: Any) -> list[CachedRolloutRunner]:
    """Return a runner for each rank."""
    return [CachedRolloutRunner(store, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def all_ids(number: int, prefix: str = "p") -> list[str]:
    return [f"{prefix}{prompt}" for prompt in range(number)]


class Watched:
    """Notes which keys are got from some objects, and by which thread."""

    def __init__(self, objects: Objects) -> None:
        self.gets: list[tuple[str, str]] = []
        self._changed = Condition()
        unwatched = objects.get

        def get(key: str) -> bytes:
            try:
                return unwatched(key)
            finally:
                with self._changed:
                    self.gets.append((key, current_thread().name))
                    self._changed.notify_all()

        objects.get = get  # type: ignore[method-assign]

    def keys(self, beginning: str = "") -> list[str]:
        return [key for key, _ in self.gets if key.startswith(beginning)]

    def wait_for(self, number: int, beginning: str) -> None:
        """Wait until so many keys with that beginning have been got."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.keys(beginning)) >= number, timeout=30), self.gets
