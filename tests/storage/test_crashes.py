"""Workers crash anywhere, race each other and are started again, while readers look on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest
from crashing import Crashed, Fate, HookedObjects, Watcher, is_moment, work
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_builders import Place, in_memory, plan_of

from rollmill.storage.objects import Objects, open_objects
from rollmill.storage.plan import Plan
from rollmill.storage.store import RolloutStore
from rollmill.storage.vacuum import vacuum_store
from rollmill.storage.verify import verify_store

PLANS = (plan_of("a"), plan_of("b", num_prompts=4))
_MAX_OPERATIONS = 120


@dataclass(frozen=True, slots=True)
class Life:
    """One worker from its start to its crash, or to its end; another life may pass while it is held up."""

    run: int
    order: int
    publish_parts: bool
    crash_at: int | str | None
    moment: str
    held_up_at: int | str
    meanwhile: Life | None


_MOMENTS = st.integers(1, _MAX_OPERATIONS) | st.sampled_from(["data/", "runs/", "log/", "HEAD"])


def lives(depth: int = 2) -> st.SearchStrategy[Life]:
    return st.builds(
        Life,
        run=st.integers(0, 1),
        order=st.integers(0, 9),
        publish_parts=st.booleans(),
        crash_at=st.none() | _MOMENTS,
        moment=st.sampled_from(["before", "after"]),
        held_up_at=_MOMENTS,
        meanwhile=st.none() | lives(depth - 1) if depth else st.none(),
    )


def pass_life(objects: Objects, life: Life, watcher: Watcher) -> None:
    """Let one worker live; at its operation `held_up_at` it stops while the other life passes as a whole."""
    plan, fate, waiting = PLANS[life.run], Fate(life.crash_at, life.moment), [life.meanwhile]

    def hook(moment: str, name: str, key: str) -> None:
        fate(moment, name, key)
        if moment == "before" and is_moment(life.held_up_at, fate.num_seen, name, key) and waiting:
            meanwhile = waiting.pop()
            if meanwhile:
                pass_life(objects, meanwhile, watcher)
        watcher(moment, name, key)

    order = random.Random(life.order).sample(range(len(plan.shards)), len(plan.shards))
    try:
        work(HookedObjects(objects, hook), plan, order, life.publish_parts)
    except Crashed:
        assert fate.dead


def check_any_lives(objects: Objects, story: list[Life]) -> None:
    watcher = Watcher(objects, PLANS)
    for life in story:
        pass_life(objects, life, watcher)
    check_that_nothing_was_lost(objects, watcher, PLANS)


def check_that_nothing_was_lost(objects: Objects, watcher: Watcher, plans: tuple[Plan, ...]) -> None:
    """Finish every run, and see each shard committed once, each run whole, and only orphans removed by a vacuum."""
    for plan in plans:
        work(objects, plan, [shard.index for shard in plan.shards])
    watcher.check_all_again()
    assert len(watcher.markers) == 2 * sum(len(plan.shards) for plan in plans)
    whole = [version.run_id for version in watcher.versions.values() if version.entry.complete]
    assert sorted(whole) == [plan.run_id for plan in plans]
    orphans, before = watcher.orphans(), set(objects.list(""))
    removed = vacuum_store(objects, now=datetime.now(UTC) + timedelta(days=8)).removed
    assert orphans <= {stored.key for stored in removed}
    assert set(objects.list("")) == before - orphans
    watcher.check_all_again()
    store = RolloutStore(objects.url)
    store.objects = store.log.objects = objects
    assert verify_store(store).problems == ()


@settings(max_examples=40)
@given(story=st.lists(lives(), min_size=1, max_size=5))
def test_whatever_crashes_and_overtakes_nothing_committed_is_lost_and_nothing_is_doubled(story: list[Life]) -> None:
    check_any_lives(in_memory(), story)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=800)
@given(story=st.lists(lives(), min_size=1, max_size=8))
def test_long_stories_of_crashes_lose_and_double_nothing(story: list[Life]) -> None:
    check_any_lives(in_memory(), story)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=st.lists(lives(), min_size=1, max_size=4))
def test_stories_of_crashes_lose_and_double_nothing_anywhere(place: Place, story: list[Life]) -> None:
    check_any_lives(_fresh(place), story)


def check_threads(objects_of: Callable[[], Objects], seed: int, num_workers: int, num_crashes: int) -> None:
    """Let workers of two runs race in threads, crash and start again, while a reader looks on without a pause."""
    watcher, chance, ended = Watcher(objects_of(), PLANS), random.Random(seed), Event()

    def worker(own: random.Random) -> None:
        plan = own.choice(PLANS)
        for life in range(num_crashes + 1):
            number = own.randrange(1, _MAX_OPERATIONS) if life < num_crashes else None
            fate = Fate(number, own.choice(["before", "after"]))
            order = own.sample(range(len(plan.shards)), len(plan.shards))
            try:
                work(HookedObjects(objects_of(), fate), plan, order, own.random() < 0.5)
            except Crashed:
                continue

    def reader() -> int:
        num_checks = 0
        while not ended.is_set() or not num_checks:
            watcher.check()
            num_checks += 1
        return num_checks

    with ThreadPoolExecutor(num_workers + 1) as threads:
        reading = threads.submit(reader)
        working = [threads.submit(worker, random.Random(chance.random())) for _ in range(num_workers)]
        try:
            for done in working:
                done.result()
        finally:
            ended.set()
        assert reading.result() > 0
    check_that_nothing_was_lost(objects_of(), watcher, PLANS)


@pytest.mark.parametrize("seed", [0])
def test_racing_workers_that_crash_lose_and_double_nothing(place: Place, seed: int) -> None:
    check_threads(place.objects, seed, num_workers=3, num_crashes=2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(10, 16))
def test_many_racing_workers_that_crash_often_lose_and_double_nothing(place: Place, seed: int) -> None:
    check_threads(place.objects, seed, num_workers=5, num_crashes=6)


def test_processes_killed_at_any_operation_lose_and_double_nothing(shared_place: Place) -> None:
    check_processes(shared_place, rounds=1, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_processes_killed_again_and_again_lose_and_double_nothing(shared_place: Place) -> None:
    for seed in range(2, 6):
        check_processes(_place_of(_fresh(shared_place), shared_place), rounds=4, seed=seed)


def check_processes(place: Place, rounds: int, seed: int) -> None:
    """Start real processes, of which some kill themselves at an operation and others are killed from outside."""
    chance, watcher = random.Random(seed), Watcher(place.objects(), PLANS)
    for _ in range(rounds):
        children = [_start(place, plan, chance.randrange(10**6), deadly=True) for plan in (*PLANS, PLANS[0])]
        for child in children:
            assert child.stdout is not None
            while not child.stdout.readline().startswith("ready"):
                assert child.poll() is None
            watcher.check()
        for child in children:
            try:
                child.wait(chance.uniform(0.05, 1.5))
            except subprocess.TimeoutExpired:
                child.kill()
            watcher.check()
        for child in children:
            child.communicate(timeout=60)
            assert child.returncode in (0, -signal.SIGKILL)
        watcher.check()
    check_that_nothing_was_lost(place.objects(), watcher, PLANS)


def _start(place: Place, plan: Plan, seed: int, deadly: bool) -> subprocess.Popen[str]:
    program = (
        "import sys, json; from crashing import live; from rollmill.storage.objects import open_objects; "
        "url, options, *rest = json.loads(sys.argv[1]); objects = open_objects(url, options); "
        "print('ready', flush=True); live(objects, *rest)"
    )
    arguments = json.dumps([place.url, place.storage_options, plan.run_id, plan.num_prompts, seed, deadly])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-c", program, arguments], stdout=subprocess.PIPE, text=True, env=environment
    )


def _fresh(place: Place) -> Objects:
    """Return the objects of another empty place of the same kind."""
    return open_objects(f"{place.url}/{random.getrandbits(64):x}", place.storage_options)


def _place_of(objects: Objects, place: Place) -> Place:
    return Place(objects.url, place.storage_options)


def test_crashes_are_drawn_from_all_the_operations_of_a_life() -> None:
    fate = Fate(None)
    work(HookedObjects(in_memory(), fate), PLANS[0], range(3), publish_parts=True)
    assert 0.8 * _MAX_OPERATIONS < fate.num_seen < 1.2 * _MAX_OPERATIONS
