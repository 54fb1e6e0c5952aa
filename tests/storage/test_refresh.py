"""The interval itself, what a refresh costs, and what is done before it."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event

import pytest
from fault_proxy import fault_proxy
from hypothesis import given
from hypothesis import strategies as st
from reading_builders import Watched, ids, publish, published, take
from seaweedfs import S3Place
from store_builders import Place

from rollmill import CachedRolloutRunner
from rollmill.errors import InputError
from rollmill.storage.refresh import RefreshInterval
from rollmill.storage.store import RolloutStore


@given(interval=st.integers(1, 9), asked=st.lists(st.booleans(), max_size=60), saved=st.integers(0, 60))
def test_rollouts_are_due_once_in_every_interval_however_often_it_is_asked(
    interval: int, asked: list[bool], saved: int
) -> None:
    refresh = RefreshInterval(interval)
    renewed = []
    for step, is_asked in enumerate(asked):
        if step == saved:
            other = RefreshInterval(interval)
            other.load_state_dict(refresh.state_dict())
            refresh = other
        if is_asked and refresh.is_due:
            refresh.renew()
            renewed.append(step // interval)
        refresh.step()
    expected = dict.fromkeys(step // interval for step, is_asked in enumerate(asked) if is_asked)
    assert renewed == list(expected)


def test_expired_rollouts_are_due_at_once() -> None:
    refresh = RefreshInterval(5)
    refresh.renew()
    assert not refresh.is_due
    refresh.expire()
    assert refresh.is_due


def test_an_interval_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="rollout_interval must be at least 1, got 0"):
        RefreshInterval(0)


@pytest.mark.parametrize("window", [1, 2])
def test_a_refresh_with_nothing_new_is_one_request(s3: S3Place, tmp_path: Path, window: int) -> None:
    for run_id in ("a", "b", "c"):
        publish(Place(s3.url, s3.storage_options).objects(), run_id, num_prompts=6)
    with fault_proxy(s3.endpoint_url) as proxy:
        store = RolloutStore(s3.url, {**s3.storage_options, "endpoint_url": proxy.url})
        runner = CachedRolloutRunner(
            store, rollout_interval=1, prompts_per_batch=3, window=window, cache_dir=tmp_path, consumer=None
        )
        take(runner, 8)
        before = len(proxy.requests)
        take(runner, 5)
        assert [method for method, _ in proxy.requests[before:]] == ["GET"] * 5


def test_a_step_does_no_io_and_the_next_version_is_fetched_before_it_is_due(tmp_path: Path) -> None:
    store = published()
    runner = CachedRolloutRunner(store, rollout_interval=4, cache_dir=tmp_path)
    runner()
    publish(store.objects, "b", policy_version=2)
    watched = Watched(store.objects)
    runner.step()
    assert watched.gets == []  # the first half of the interval
    runner.step()
    watched.wait_for(7, "data/b/")
    assert "MainThread" not in {thread for _, thread in watched.gets}
    runner.step()
    runner.step()
    fetched = len(watched.keys("data/"))
    result, is_fresh = runner()
    assert (result.policy_version, is_fresh) == (2, True)
    assert next(key for key, thread in watched.gets if thread == "MainThread") == "log/000000000002.json"
    assert all(key.startswith("log/") for key, thread in watched.gets if thread == "MainThread")
    take(runner, 2)
    assert len(watched.keys("data/")) == fetched == 7


def test_a_refresh_does_not_wait_for_slow_files(tmp_path: Path) -> None:
    """The files of the next version come slowly, but they come while the trainer still works with the old ones."""
    store = published()
    runner = CachedRolloutRunner(store, rollout_interval=2, cache_dir=tmp_path)
    runner()
    publish(store.objects, "b", policy_version=2, num_prompts=6, prompts_per_shard=6)
    may_come, got = Event(), store.objects.get

    def slow(key: str) -> bytes:
        if key.startswith("data/b/"):
            assert may_come.wait(30)
        return got(key)

    store.objects.get = slow  # type: ignore[method-assign]
    watched = Watched(store.objects)
    runner.step()
    assert runner()[0].policy_version == 1
    may_come.set()
    watched.wait_for(1, "data/b/")
    runner.step()
    begin = time.monotonic()
    assert runner()[0].policy_version == 2
    assert time.monotonic() - begin < 1


def test_a_store_that_fails_while_looking_ahead_costs_nothing_until_the_refresh(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = published()
    runner = CachedRolloutRunner(store, rollout_interval=4, cache_dir=tmp_path)
    runner()
    file = publish(store.objects, "b", policy_version=2).latest().files[0].file
    data = store.objects.get(file)
    store.objects.delete(file)
    watched = Watched(store.objects)
    runner.step()
    runner.step()
    watched.wait_for(1, file)
    assert runner()[0].policy_version == 1
    store.objects.put(file, data)
    take(runner, 2)
    assert len(set(ids(take(runner, 3)))) == 20
