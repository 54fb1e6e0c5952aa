"""What a trainer gets from `CachedRolloutRunner`, and when it goes over to newer rollouts."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_builders import all_ids, ids, publish, published, ranks, take
from store_builders import GROUP_SIZE, Place, in_memory

from rollmill import CachedRolloutRunner
from rollmill.errors import CorruptDataError, InputError, ObjectMissingError, StaleRolloutsError
from rollmill.storage.results import RolloutResult
from rollmill.storage.store import RolloutStore


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_every_minibatch_is_what_the_version_holds(place: Place) -> None:
    publish(place.objects(), unscored=[(4, 1)])
    store = place.store()
    runner = CachedRolloutRunner(store, prompts_per_batch=8, null_rewards="keep")
    results = take(runner, 3)
    assert [result.num_groups for result in results] == [8, 8, 4]
    for result in results:
        _assert_same(result, store.latest().result(result.prompt_ids))
    assert sorted(ids(results)) == sorted(all_ids(20))


def _assert_same(result: RolloutResult, expected: RolloutResult) -> None:
    for name, value in vars(expected).items():
        found = getattr(result, name)
        if isinstance(value, torch.Tensor):
            assert torch.equal(found.nan_to_num(-9), value.nan_to_num(-9)), name
        else:
            assert found == value, name


def test_the_first_minibatch_of_newer_rollouts_is_fresh(place: Place) -> None:
    publish(place.objects(), "a", policy_version=1)
    runner = CachedRolloutRunner(place.store(), rollout_interval=3, prompts_per_batch=8)
    seen: list[tuple[int, bool]] = []
    for step in range(8):
        if step == 4:
            publish(place.objects(), "b", policy_version=2)
        result, is_fresh = runner()
        seen.append((result.policy_version, is_fresh))
        runner.step()
    assert seen == [(1, True), *[(1, False)] * 5, (2, True), (2, False)]


def test_a_call_without_a_step_is_the_next_minibatch_of_the_same_interval() -> None:
    store = published()
    runner = CachedRolloutRunner(store, rollout_interval=1, prompts_per_batch=5)
    first = runner()[0]
    publish(store.objects, "b", policy_version=2)
    rest = [runner()[0] for _ in range(3)]
    assert sorted(ids([first, *rest])) == sorted(all_ids(20))
    runner.step()
    assert runner()[0].policy_version == 2


def test_clearing_the_cache_looks_for_newer_rollouts_at_once() -> None:
    store = published()
    runner = CachedRolloutRunner(store)
    runner()
    publish(store.objects, "b", policy_version=2)
    assert not runner()[1]
    runner.clear_cache()
    result, is_fresh = runner()
    assert (result.policy_version, is_fresh) == (2, True)


def test_every_epoch_has_each_group_once_in_another_order_and_another_seed_another() -> None:
    store = published()
    epochs = [ids(take(runner, 3)) for runner in [CachedRolloutRunner(store)] for _ in range(3)]
    assert all(sorted(epoch) == sorted(all_ids(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert ids(take(CachedRolloutRunner(store), 9)) == [name for epoch in epochs for name in epoch]
    assert ids(take(CachedRolloutRunner(store, seed=1), 3)) != epochs[0]


@settings(max_examples=25, deadline=None)
@given(num_prompts=st.integers(1, 40), batch=st.integers(1, 9), world_size=st.integers(1, 5), drop_last=st.booleans())
def test_ranks_share_every_epoch_without_a_duplicate(
    num_prompts: int, batch: int, world_size: int, drop_last: bool
) -> None:
    store = published(num_prompts=num_prompts)
    per_step = batch * world_size
    num_steps = num_prompts // per_step if drop_last else -(-num_prompts // per_step)
    runners = ranks(store, world_size, prompts_per_batch=batch, drop_last=drop_last)
    if num_steps == 0:
        for runner in runners:
            with pytest.raises(InputError, match=f"fewer usable groups than the {per_step} of one step"):
                runner()
        return
    for _ in range(2):
        results = [take(runner, num_steps) for runner in runners]
        sizes = [[result.num_groups for result in step] for step in zip(*results, strict=True)]
        assert all(size == batch for step in sizes[:-1] for size in step)
        assert max(sizes[-1]) - min(sizes[-1]) <= 1
        seen = [name for each in results for name in ids(each)]
        assert len(set(seen)) == len(seen) == (num_steps * per_step if drop_last else num_prompts)


def test_a_rank_without_groups_still_gets_a_result_of_the_right_shape() -> None:
    results = [runner()[0] for runner in ranks(published(num_prompts=2), 3)]
    assert sorted(result.num_groups for result in results) == [0, 1, 1]
    empty = next(result for result in results if not result.num_groups)
    assert empty.responses.shape == (0, GROUP_SIZE, 0)
    assert empty.rewards.shape == (0, GROUP_SIZE)


def test_resuming_at_every_step_of_three_epochs_gives_the_unbroken_order() -> None:
    store = published(unscored=[(3, 0), (11, 2)])
    options: dict[str, Any] = {"rollout_interval": 4, "prompts_per_batch": 4}
    unbroken = CachedRolloutRunner(store, **options)
    whole, states = [], []
    for _ in range(15):
        states.append(json.loads(json.dumps(unbroken.state_dict())))
        whole.append(_shown(unbroken))
    for step, state in enumerate(states):
        resumed = CachedRolloutRunner(store, **options)
        resumed.load_state_dict(state)
        assert [_shown(resumed) for _ in range(15 - step)] == whole[step:], step
        assert resumed.state_dict() == unbroken.state_dict()


def _shown(runner: CachedRolloutRunner) -> tuple[list[str], bool]:
    result, is_fresh = runner()
    runner.step()
    return result.prompt_ids, is_fresh


def test_a_resumed_runner_reads_its_own_version_to_the_end_of_the_interval() -> None:
    store = published()
    runner = CachedRolloutRunner(store, rollout_interval=4)
    take(runner, 2)
    state = runner.state_dict()
    publish(store.objects, "b", policy_version=2)
    resumed = CachedRolloutRunner(store, rollout_interval=4)
    resumed.load_state_dict(state)
    assert [result.policy_version for result in take(resumed, 3)] == [1, 1, 2]


@settings(max_examples=15, deadline=None)
@given(
    num_prompts=st.integers(1, 25),
    steps_before=st.integers(0, 4),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    batches=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_another_world_size_goes_on_with_exactly_what_is_left(
    num_prompts: int, steps_before: int, sizes: tuple[int, int], batches: tuple[int, int]
) -> None:
    store = published(num_prompts=num_prompts, unscored=[(5, 0)])
    usable = Counter(all_ids(num_prompts)) - Counter(["p5"])
    if not usable:
        return
    before = ranks(store, sizes[0], prompts_per_batch=batches[0])
    seen = Counter(name for runner in before for name in ids(take(runner, steps_before)))
    states = [runner.state_dict() for runner in before]
    assert all(state == states[0] for state in states)
    after = ranks(store, sizes[1], prompts_per_batch=batches[1])
    for runner in after:
        runner.load_state_dict(states[0])
    times = states[0]["epoch"] + 1
    while any(seen[name] < times for name in usable):
        seen.update(name for runner in after for name in ids(take(runner, 1)))
        assert all(runner.state_dict() == after[0].state_dict() for runner in after)
    assert seen == Counter(dict.fromkeys(usable, times))


def test_a_state_of_another_seed_is_refused() -> None:
    store = published()
    state = CachedRolloutRunner(store, seed=1).state_dict()
    with pytest.raises(InputError, match="runner with seed 1, this one has seed 0"):
        CachedRolloutRunner(store).load_state_dict(state)


def test_null_rewards_are_left_out_or_kept_as_asked() -> None:
    store = published(num_prompts=6, unscored=[(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)], failed=[3])
    seen = {}
    for name, options in {
        "full": {},
        "two": {"null_rewards": "min_k", "min_k": 2},
        "one": {"null_rewards": "min_k", "min_k": 1},
        "keep": {"null_rewards": "keep"},
    }.items():
        (result,) = take(CachedRolloutRunner(store, **options), 1)  # type: ignore[arg-type]
        seen[name] = {
            prompt: rewards.isnan().sum().item()
            for prompt, rewards in zip(result.prompt_ids, result.rewards, strict=True)
        }
    assert seen["full"] == {"p4": 0, "p5": 0}
    assert seen["two"] == {"p0": 1, **seen["full"]}
    assert seen["one"] == {"p1": 2, **seen["two"]}
    assert seen["keep"] == {"p2": 3, "p3": 3, **seen["one"]}


def test_groups_that_are_left_out_do_not_make_minibatches_smaller() -> None:
    store = published(num_prompts=20, unscored=[(prompt, 0) for prompt in range(0, 20, 2)])
    results = take(CachedRolloutRunner(store, prompts_per_batch=4), 3)
    assert [result.num_groups for result in results] == [4, 4, 2]


def test_a_version_without_a_usable_group_is_refused() -> None:
    store = published(num_prompts=3, failed=[0, 1, 2])
    with pytest.raises(InputError, match="no group that null_rewards='require_full' lets through"):
        CachedRolloutRunner(store)()


def test_padding_is_where_the_trainer_wants_it() -> None:
    store = published()
    result = CachedRolloutRunner(store, pad_id=-5, prompt_side="right", response_side="left")()[0]
    assert (result.prompts[~result.prompt_mask] == -5).all()
    assert (result.responses[~result.response_mask] == -5).all()
    assert result.prompt_mask[:, 0].all()
    assert result.response_mask[:, :, -1].all()
    _assert_same(result, store.latest().result(result.prompt_ids, pad_id=-5, prompt_side="right", response_side="left"))


def test_a_logprob_mode_that_the_trainer_did_not_name_is_refused() -> None:
    store = published(logprob_mode="raw")
    with pytest.raises(InputError, match=r"\.parquet has logprob_mode 'raw', the trainer accepts 'processed'"):
        CachedRolloutRunner(store, prompts_per_batch=1)()
    assert CachedRolloutRunner(store, accept_logprob_mode=["processed", "raw"])()[0].logprob_mode == "raw"


def test_runs_of_different_logprob_modes_are_not_mixed() -> None:
    objects = in_memory()
    publish(objects, "a", logprob_mode="raw")
    store = publish(objects, "b")
    runner = CachedRolloutRunner(store, window=2, accept_logprob_mode=["processed", "raw"])
    with pytest.raises(InputError, match="read them apart"):
        take(runner, 20)


def test_a_window_mixes_the_newest_runs_and_each_row_knows_its_policy() -> None:
    objects = in_memory()
    for version in (1, 2, 3):
        store = publish(objects, f"run{version}", policy_version=version, num_prompts=6)
    results = take(CachedRolloutRunner(store, window=2, prompts_per_batch=4), 3)
    versions = [version for result in results for version in result.policy_versions.tolist()]
    assert Counter(versions) == {3: 6, 2: 6}
    assert all(result.policy_version == 3 for result in results)
    assert any(len(set(result.policy_versions.tolist())) == 2 for result in results)


def test_rollouts_that_are_too_old_raise_are_reused_or_waited_for() -> None:
    store = published(policy_version=3)
    with pytest.raises(StaleRolloutsError, match=r"policy version 3; the trainer is at 6 and accepts an age of 2"):
        CachedRolloutRunner(store, max_staleness=2, on_stale="raise", policy_version=6)()
    assert CachedRolloutRunner(store, max_staleness=2, on_stale="reuse", policy_version=6)()[1]
    waiting = CachedRolloutRunner(store, max_staleness=2, policy_version=6, seconds_to_wait=0)
    with pytest.raises(StaleRolloutsError, match="nothing newer came in 0 seconds"):
        waiting()
    publish(store.objects, "b", policy_version=4)
    assert waiting()[0].policy_version == 4


def test_rollouts_that_get_too_old_within_an_interval_are_replaced() -> None:
    store = published(policy_version=1)
    runner = CachedRolloutRunner(store, max_staleness=1, on_stale="raise", policy_version=1)
    runner()
    runner.step(policy_version=2)
    assert not runner()[1]
    publish(store.objects, "b", policy_version=2)
    assert runner()[0].policy_version == 1
    runner.policy_version = 3
    result, is_fresh = runner()
    assert (result.policy_version, is_fresh) == (2, True)
    runner.step(policy_version=4)
    with pytest.raises(StaleRolloutsError):
        runner()
    runner.policy_version = 3
    assert runner()[0].policy_version == 2


def test_of_a_window_only_the_runs_that_are_too_old_are_left_out() -> None:
    objects = in_memory()
    for version in (1, 2, 3):
        store = publish(objects, f"run{version}", policy_version=version, num_prompts=4)
    runner = CachedRolloutRunner(store, window=3, max_staleness=2, policy_version=3, prompts_per_batch=20)
    assert set(runner()[0].policy_versions.tolist()) == {1, 2, 3}
    runner.step(policy_version=4)
    result, is_fresh = runner()
    assert (set(result.policy_versions.tolist()), is_fresh) == ({2, 3}, True)


def test_a_limit_on_age_needs_the_trainers_version() -> None:
    with pytest.raises(InputError, match="set the runner's policy_version"):
        CachedRolloutRunner(published(), max_staleness=2)()


def test_an_empty_store_is_an_error_unless_the_trainer_waits() -> None:
    store = RolloutStore(in_memory().url)
    with pytest.raises(ObjectMissingError, match="has no published version yet"):
        CachedRolloutRunner(store)()
    with pytest.raises(StaleRolloutsError, match="has no published version yet; nothing newer came in 0 seconds"):
        CachedRolloutRunner(store, max_staleness=1, policy_version=0, seconds_to_wait=0)()


@pytest.mark.parametrize("harm", ["gone", "short", "changed"])
def test_a_damaged_file_is_named_and_its_rows_never_given(harm: str) -> None:
    store = published(num_prompts=9)
    file = store.latest().files[1].file
    data = store.objects.get(file)
    if harm == "gone":
        store.objects.delete(file)
    else:
        store.objects.put(file, data[:-1] if harm == "short" else data[:100] + bytes([data[100] ^ 1]) + data[101:])
    runner = CachedRolloutRunner(store, prompts_per_batch=9)
    with pytest.raises(ObjectMissingError if harm == "gone" else CorruptDataError, match=file):
        runner()
    store.objects.put(file, data)
    assert sorted(ids([runner()[0]])) == sorted(all_ids(9))


def test_a_pickled_runner_goes_on_from_the_same_place() -> None:
    store = published()
    runner = CachedRolloutRunner(store, prompts_per_batch=3)
    take(runner, 2)
    copy = pickle.loads(pickle.dumps(runner))
    assert ids(take(copy, 9)) == ids(take(runner, 9))


def test_the_version_in_use_is_pinned_under_the_consumers_name() -> None:
    from rollmill.storage.pins import live_pins

    store = published()
    CachedRolloutRunner(store, consumer="trainer")()
    [held] = live_pins(store.objects)
    assert (held.consumer, held.oldest, held.version) == ("trainer", 1, 1)
    publish(store.objects, "run1")
    CachedRolloutRunner(store, consumer="trainer", window=2)()
    [held] = live_pins(store.objects)
    assert (held.consumer, held.oldest, held.version) == ("trainer", 1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rollout_interval": 0}, "rollout_interval must be at least 1, got 0"),
        ({"prompts_per_batch": 0}, "prompts_per_batch must be at least 1, got 0"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"max_staleness": -1}, "max_staleness must be at least 0, got -1"),
        ({"on_stale": "panic"}, "on_stale must be wait, reuse or raise, got 'panic'"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"null_rewards": "zero"}, "null_rewards must be require_full, min_k or keep, got 'zero'"),
        ({"null_rewards": "min_k"}, "go together"),
        ({"min_k": 3}, "go together"),
        ({"null_rewards": "min_k", "min_k": 0}, "min_k must be at least 1, got 0"),
        ({"prompt_side": "top"}, "padding side must be left or right, got top"),
    ],
)
def test_settings_out_of_bounds_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, ValueError), match=message):
        CachedRolloutRunner(RolloutStore("memory://nothing"), **options)
