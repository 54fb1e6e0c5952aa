from __future__ import annotations

import json
import math
import pickle
import time
from typing import Any

import pytest
import torch
from fault_proxy import fault_proxy
from hypothesis import given, settings
from hypothesis import strategies as st
from seaweedfs import S3Place
from store_builders import (
    GROUP_SIZE,
    Place,
    failed_row,
    in_memory,
    plan_of,
    row_of,
    shard_rows,
    table_of,
    write_rows,
    write_run,
)

from rollmill.errors import CorruptDataError, InputError, ObjectMissingError, StoreAccessError
from rollmill.storage.objects import Objects
from rollmill.storage.publish import publish_run
from rollmill.storage.runs import RunStore
from rollmill.storage.store import RolloutStore
from rollmill.storage.vacuum import vacuum_store
from rollmill.storage.verify import verify_store
from rollmill.storage.version import DatasetVersion


def test_an_empty_store_says_so(place: Place) -> None:
    store = place.store()
    assert store.versions() == []
    for read in (store.latest, lambda: store.version(1)):
        with pytest.raises(ObjectMissingError, match="has no published version yet; check the address"):
            read()


def test_versions_are_numbered_and_stay(place: Place) -> None:
    objects, store = place.objects(), place.store()
    for number, run_id in enumerate(("a", "b", "c"), start=1):
        _published(objects, run_id)
        assert store.latest().number == number
    assert [version.number for version in store.versions()] == [1, 2, 3]
    assert store.version(2).run_id == "b"
    with pytest.raises(ObjectMissingError, match="has no version 4; its versions are 1 to 3"):
        store.version(4)
    with pytest.raises(ObjectMissingError, match="has no version 0"):
        store.version(0)


def test_what_is_published_is_what_is_read(place: Place) -> None:
    plan = plan_of()
    _published(place.objects(), "run")
    version = place.store().latest()
    expected = [row for shard in plan.shards for row in shard_rows(plan, shard.index).to_pylist()]
    assert version.read().to_pylist() == expected
    assert version.read(["seed", "prompt_id"]).column_names == ["seed", "prompt_id"]
    assert version.read().schema.metadata[b"logprob_mode"] == b"processed"


def test_a_column_that_is_not_there_is_named(place: Place) -> None:
    _published(place.objects(), "run")
    with pytest.raises(InputError, match=r"no column rewards; .*, reward,"):
        place.store().latest().read(["rewards"])


def test_a_store_of_a_newer_format_is_refused(place: Place) -> None:
    objects = place.objects()
    _published(objects, "run")
    objects.put("_format.json", json.dumps({"format_version": 99}).encode())
    for use in (
        place.store().latest,
        place.store().versions,
        lambda: place.store().version(1),
        lambda: RunStore(objects, "new").open_plan(plan_of("new")),
        lambda: RunStore(objects, "run").load_plan(),
        lambda: publish_run(objects, plan_of(), "generate", policy_version=1),
        lambda: publish_run(objects, plan_of(), "generate", policy_version=1, shards=[0]),
        lambda: verify_store(place.store()),
        lambda: vacuum_store(objects),
    ):
        with pytest.raises(StoreAccessError, match="has format 99, this rollmill reads format 1; upgrade rollmill"):
            use()


def test_another_process_sees_a_version_as_soon_as_it_is_there(place: Place) -> None:
    objects, reader = place.objects(), place.store()
    _published(objects, "a")
    assert reader.latest().number == 1
    _published(objects, "b")
    assert reader.latest().number == 2


def test_readers_never_list(s3: S3Place) -> None:
    _published(Place(s3.url, s3.storage_options).objects(), "run")
    with fault_proxy(s3.endpoint_url) as proxy:
        store = RolloutStore(s3.url, {**s3.storage_options, "endpoint_url": proxy.url})
        store.latest().result()
        paths = [path.rpartition("?")[0] or path for method, path in proxy.requests]
        assert {method for method, _ in proxy.requests} == {"GET"}
        assert all(path.endswith((".json", "/HEAD", ".parquet")) for path in paths)
        assert len(paths) == 4 + 3  # format, HEAD, the entry, the next that is not there; three files


def test_a_store_and_its_versions_can_be_pickled(place: Place) -> None:
    _published(place.objects(), "run")
    version = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(place.store())).latest()))
    assert version.read().num_rows == 15


def test_a_result_holds_every_row_padded(place: Place) -> None:
    _published(place.objects(), "run")
    result = place.store().latest().result()
    assert result.responses.shape == (5, GROUP_SIZE, 4)
    assert (result.prompts.dtype, result.responses.dtype) == (torch.int64, torch.int64)
    assert (result.prompt_mask.dtype, result.response_mask.dtype) == (torch.bool, torch.bool)
    assert (result.logprobs_old.dtype, result.rewards.dtype) == (torch.float32, torch.float32)
    assert (result.policy_version, result.logprob_mode) == (1, "processed")
    assert result.prompt_ids == [f"p{prompt}" for prompt in range(5)]
    assert result.prompt_texts == [f"question {prompt}" for prompt in range(5)]
    assert result.columns == {"answer": [0, 1, 2, 3, 4]}
    for prompt in range(5):
        for sample in range(GROUP_SIZE):
            row, mask = row_of(prompt, sample), result.response_mask[prompt, sample]
            num_tokens = len(row["response_token_ids"])
            assert mask.tolist() == [True] * num_tokens + [False] * (4 - num_tokens)
            assert result.responses[prompt, sample][mask].tolist() == row["response_token_ids"]
            assert result.logprobs_old[prompt, sample][mask].tolist() == row["logprobs"]
            assert result.rewards[prompt, sample] == row["reward"]
            assert result.response_texts[prompt][sample] == row["response_text"]
            assert result.finish_reasons[prompt][sample] == row["finish_reason"]
        assert result.prompts[prompt][result.prompt_mask[prompt]].tolist() == list(range(10, 11 + prompt))
        assert result.prompt_mask[prompt].tolist() == [False] * (4 - prompt) + [True] * (prompt + 1)


def test_padding_is_where_the_caller_wants_it(place: Place) -> None:
    _published(place.objects(), "run")
    version = place.store().latest()
    usual, turned = version.result(), version.result(pad_id=-7, prompt_side="right", response_side="left")
    assert turned.prompt_mask[:, 0].all()
    assert turned.response_mask[:, :, -1].all()
    assert (turned.prompts[~turned.prompt_mask] == -7).all()
    assert (turned.responses[~turned.response_mask] == -7).all()
    assert torch.equal(turned.responses[turned.response_mask], usual.responses[usual.response_mask])
    assert torch.equal(turned.logprobs_old[turned.response_mask], usual.logprobs_old[usual.response_mask])
    with pytest.raises(ValueError, match="padding side must be left or right, got middle"):
        version.result(prompt_side="middle")


@settings(max_examples=25)
@given(wanted=st.lists(st.integers(0, 4), unique=True, min_size=1))
def test_chosen_prompts_come_in_the_order_asked_for(wanted: list[int]) -> None:
    version = _version_in_memory()
    result = version.result([f"p{prompt}" for prompt in wanted])
    assert result.prompt_ids == [f"p{prompt}" for prompt in wanted]
    everything = version.result()
    assert torch.equal(result.rewards, everything.rewards[wanted])


def test_a_prompt_that_is_not_there_is_named(place: Place) -> None:
    _published(place.objects(), "run")
    with pytest.raises(InputError, match=r"version 1 of .* has no prompt p9"):
        place.store().latest().result(["p0", "p9"])


def test_failed_rows_are_empty_and_failed_rewards_are_nan(place: Place) -> None:
    unscored: dict[str, Any] = {"reward": None, "reward_status": "failed", "reward_error": "timed out"}
    rows = [failed_row(0, 0), row_of(0, 1, **unscored), row_of(0, 2)]
    rows += [failed_row(1, sample) for sample in range(GROUP_SIZE)]
    result = _published_rows(place.objects(), rows).result()
    assert result.response_mask.any(dim=2).tolist() == [[False, True, True], [False] * 3]
    assert [math.isnan(reward) for reward in result.rewards[0].tolist()] == [True, True, False]
    assert result.finish_reasons == [["error", "length", "stop"], ["error"] * 3]


def test_a_version_in_which_nothing_was_answered_is_still_a_result() -> None:
    result = _published_rows(in_memory(), [failed_row(p, s) for p in range(2) for s in range(GROUP_SIZE)]).result()
    assert result.responses.shape == (2, GROUP_SIZE, 0)
    assert result.rewards.isnan().all()


def test_rows_may_be_stored_in_any_order_within_a_shard() -> None:
    rows = [row_of(p, s) for p in range(2) for s in range(GROUP_SIZE)]
    mixed = _published_rows(in_memory(), rows[::-1]).result(["p0", "p1"])
    sorted_ = _published_rows(in_memory(), rows).result()
    assert torch.equal(mixed.rewards, sorted_.rewards)
    assert mixed.response_texts == sorted_.response_texts


def test_a_window_takes_whole_runs_newest_first(place: Place) -> None:
    for run_id in ("a", "b", "c"):
        _published(place.objects(), run_id)
    version = place.store().latest()
    assert version.num_rows == 15
    assert version.read(["run_id"], window=2)["run_id"].unique().to_pylist() == ["c", "b"]
    assert version.result(window=2).num_groups == 10
    assert version.read(window=99).num_rows == 45
    with pytest.raises(InputError, match="window must be at least 1, got 0"):
        version.read(window=0)


def test_files_that_disagree_on_the_logprob_mode_give_no_result(place: Place) -> None:
    objects, plan = place.objects(), plan_of()
    runs = RunStore(objects, "run")
    runs.open_plan(plan)
    for shard in plan.shards:
        write_rows(runs, shard.index, shard_rows(plan, shard.index), logprob_mode=["processed", "raw"][shard.index % 2])
    version = publish_run(objects, plan, "generate", policy_version=1)
    assert b"logprob_mode" not in version.read().schema.metadata
    with pytest.raises(CorruptDataError, match="name no one logprob_mode"):
        version.result()


@pytest.mark.parametrize("harm", ["gone", "short", "changed"])
def test_a_damaged_file_is_named_and_never_returned(place: Place, harm: str) -> None:
    objects = place.objects()
    file = _published(objects, "run").files[1].file
    data = objects.get(file)
    if harm == "gone":
        objects.delete(file)
    else:
        objects.put(file, data[:-1] if harm == "short" else data[:100] + bytes([data[100] ^ 1]) + data[101:])
    for read in (place.store().latest().read, place.store().latest().result):
        with pytest.raises(ObjectMissingError if harm == "gone" else CorruptDataError, match=file):
            read()


def test_wrong_credentials_and_a_missing_bucket_are_named_to_readers(s3: S3Place) -> None:
    with pytest.raises(StoreAccessError, match="access refused"):
        RolloutStore(s3.url, {**s3.storage_options, "secret": "wrong"}).latest()


def test_a_result_of_a_large_version_takes_no_loop_over_tokens() -> None:
    rows = [row_of(p, s, response_token_ids=[1] * 500, logprobs=[-1.0] * 500) for p in range(400) for s in range(3)]
    version = _published_rows(in_memory(), rows)
    begin = time.monotonic()
    result = version.result()
    assert time.monotonic() - begin < 2  # a loop over rows or tokens takes several times as long
    assert result.responses.shape == (400, 3, 500)


def _published(objects: Objects, run_id: str) -> DatasetVersion:
    write_run(objects, plan_of(run_id))
    return publish_run(objects, plan_of(run_id), "generate", policy_version=1)


def _published_rows(objects: Objects, rows: list[dict[str, Any]]) -> DatasetVersion:
    """Publish one shard of these rows."""
    num_prompts = len(rows) // GROUP_SIZE
    plan = plan_of(num_prompts=num_prompts, prompts_per_shard=num_prompts)
    runs = RunStore(objects, "run")
    runs.open_plan(plan)
    write_rows(runs, 0, table_of(rows))
    return publish_run(objects, plan, "generate", policy_version=1)


def _version_in_memory() -> DatasetVersion:
    return _published(in_memory(), "run")
