"""A run that is published as it goes: its versions grow while it works, and the last one is whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from flow_builders import answers, job_of, job_values, write_job
from prefect import flow
from prefect.futures import PrefectConcurrentFuture
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Failed, State
from typer.testing import CliRunner

from rollmill.cli.main import app
from rollmill.errors import RunFailedError, StorageError
from rollmill.flows.failures import FailedRewards
from rollmill.flows.gate import Gate
from rollmill.flows.job import RolloutJob
from rollmill.flows.job_file import load_job
from rollmill.flows.publishing import Published, Publishing
from rollmill.flows.rollout import rollout
from rollmill.storage.cached_runner import CachedRolloutRunner
from rollmill.storage.store import RolloutStore
from rollmill.storage.verify import verify_store

if TYPE_CHECKING:
    from conftest import FinishedRun

NUM_SHARDS = 8
LAST_PROMPT = "Say 7."


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A reward that scores the last prompt only when a file is there, and fails for some other prompts."""
    monkeypatch.syspath_prepend(str(tmp_path))
    source = """
        import pathlib, time

        def score(prompts, completions, wait_for, wait_at, fails, **columns):
            if any(wait_at in prompt for prompt in prompts):
                deadline = time.monotonic() + 60
                while not pathlib.Path(wait_for).exists():
                    assert time.monotonic() < deadline, "nothing was published meanwhile"
                    time.sleep(0.01)
            return [None if any(text in prompt for text in fails) else float(len(text)) for prompt, text
                    in zip(prompts, completions)]
    """
    (tmp_path / "patient_rewards.py").write_text(textwrap.dedent(source))
    return {
        "type": "function",
        "path": "patient_rewards:score",
        "options": {"wait_for": str(tmp_path / "store/log/000000000001.json"), "wait_at": LAST_PROMPT, "fails": []},
        "seconds_per_call": 90,
    }


def job(policy: Path, prompts: Path, tmp_path: Path, **sections: Any) -> RolloutJob:
    """Return a job of one prompt a shard."""
    return job_of(policy, prompts, str(tmp_path / "store"), shards__prompts_per_shard=1, **sections)


def expect_growth(store: RolloutStore, every_shards: int) -> None:
    """Check that each version has all rows of the one before and enough more, none twice, and the last one all."""
    versions = store.versions()
    held = []
    for version in versions:
        rows = version.read(["prompt_id", "sample_index"]).to_pylist()
        keys = {(row["prompt_id"], row["sample_index"]) for row in rows}
        assert len(keys) == len(rows) == version.num_rows
        assert len({file.shard for file in version.files}) == len({file.file for file in version.files})
        held.append(keys)
    for (earlier, one), (later, other) in pairwise(zip(held, versions, strict=True)):
        assert earlier < later
        assert other.entry.complete or len(other.files) - len(one.files) >= every_shards
    assert [version.entry.complete for version in versions] == [False] * (len(versions) - 1) + [True]
    assert len(versions[-1].files) == NUM_SHARDS
    assert verify_store(store).problems == ()


def test_versions_appear_while_the_run_goes_on_and_grow_until_it_is_whole(
    policy: Path, prompts: Path, tmp_path: Path, patient: dict[str, Any], unbroken: FinishedRun
) -> None:
    report = rollout(job(policy, prompts, tmp_path, rewards=[patient], publish={"every_shards": 2}))
    store = RolloutStore(tmp_path / "store")
    assert 2 <= report.version <= 4
    assert report.version == store.latest().number
    assert answers(store) == answers(unbroken.store)
    expect_growth(store, 2)
    result, is_fresh = CachedRolloutRunner(store, prompts_per_batch=NUM_SHARDS)()
    assert (is_fresh, result.num_groups) == (True, NUM_SHARDS)
    expect_commands_to_tell_parts_from_the_whole(str(tmp_path / "store"))


def expect_commands_to_tell_parts_from_the_whole(store: str) -> None:
    rows = json.loads(CliRunner().invoke(app, ["ls", store, "--json"]).stdout)
    assert [row["whole"] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert rows[-1]["rows"] == 4 * NUM_SHARDS
    for row in rows:
        shown = CliRunner().invoke(app, ["show", store, "--version", str(row["version"]), "--json"])
        assert json.loads(shown.stdout)["rows"] == row["rows"]
    assert CliRunner().invoke(app, ["verify", store]).exit_code == 0


def test_a_killed_run_goes_on_publishing_and_doubles_nothing(
    policy: Path, prompts: Path, tmp_path: Path, unbroken: FinishedRun
) -> None:
    values = job_values(policy, prompts, str(tmp_path / "store"), shards__prompts_per_shard=1)
    job_file = write_job(tmp_path / "job.yaml", {**values, "publish": {"every_shards": 1}})
    process = subprocess.Popen(
        [sys.executable, "-m", "rollmill.cli", "run", str(job_file)],
        env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "store/log/000000000002.json").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    store = RolloutStore(tmp_path / "store")
    before = store.versions()
    assert len(before) >= 2
    assert len(before[-1].files) < NUM_SHARDS
    rollout(load_job(job_file))
    assert [version.entry for version in store.versions()[: len(before)]] == [version.entry for version in before]
    assert answers(store) == answers(unbroken.store)
    expect_growth(store, 1)
    last = store.latest().number
    assert rollout(load_job(job_file)).version == last


def test_no_part_has_more_failed_rewards_than_a_run_may_have(
    policy: Path, prompts: Path, tmp_path: Path, patient: dict[str, Any]
) -> None:
    patient["options"] |= {"wait_at": "nowhere", "fails": ["Say 0.", "Say 1."]}
    settings = {"rewards": [patient], "publish": {"every_shards": 1}, "max_failed_fraction": 0.3}
    rollout(job(policy, prompts, tmp_path, **settings))
    store = RolloutStore(tmp_path / "store")
    expect_growth(store, 1)
    for version in store.versions():
        rewards = version.read(["reward"])["reward"]
        assert rewards.null_count <= 0.3 * len(rewards)
    assert store.latest().read(["reward"])["reward"].null_count == 8


def test_a_run_that_fails_by_its_rewards_publishes_no_part_with_too_many(
    policy: Path, prompts: Path, tmp_path: Path, patient: dict[str, Any]
) -> None:
    patient["options"] |= {"wait_at": "nowhere", "fails": ["Say"]}
    with pytest.raises(RunFailedError, match="nothing more was published"):
        rollout(job(policy, prompts, tmp_path, rewards=[patient], publish={"every_shards": 1}))
    assert RolloutStore(tmp_path / "store").versions() == []


def test_changed_rewards_take_the_place_of_a_whole_version_only_as_a_whole(
    finished: FinishedRun, patient: dict[str, Any]
) -> None:
    patient["options"]["wait_at"] = "nowhere"
    changed = {"rewards": [patient], "publish": {"every_shards": 1}}
    report = rollout(RolloutJob.model_validate({**finished.job.model_dump(), **changed}))
    assert report.version == 2
    assert [version.entry.complete for version in finished.store.versions()] == [True, True]


class Submitted:
    """What was submitted to be published, each part with the future that ends it."""

    def __init__(self) -> None:
        self.parts: list[list[int]] = []
        self._futures: list[Future[Any]] = []

    def submit(self, shards: Sequence[int]) -> PrefectConcurrentFuture[int]:
        self.parts.append(list(shards))
        self._futures.append(Future())
        return PrefectConcurrentFuture(uuid4(), self._futures[-1])

    def end(self, state: State[Any] | None = None) -> None:
        self._futures[-1].set_result(state or Completed(data=1))


def scored(failed: FailedRewards, shards: Sequence[int], unscored: int = 0) -> Sequence[int]:
    """Count shards of 4 answers, of each of which some could not be scored."""
    counts = {"rows": 4, "unscored": unscored, "scored": 4 - unscored, "reasons": {}, "passes": {}}
    for shard in shards:
        failed.add(shard, {**dict.fromkeys(("groups", "ok", "truncated", "failed", "response_tokens", "reward_sum"), 0),
                           **counts})  # fmt: skip
    return shards


def publishing(
    every_shards: int, before: Published | None = None, gate: Gate | None = None
) -> tuple[Callable[..., None], Submitted, Publishing]:
    """Return what adds finished shards of a run of 10, what was submitted, and the publishing itself."""
    gate = gate or Gate()
    failed = FailedRewards("run r", max_fraction=0.5, total_rows=40, gate=gate, remedy="Go on.")
    submitted = Submitted()
    made = Publishing(submitted.submit, every_shards, 10, before or Published(), failed, gate)
    return lambda *shards, unscored=0: made.add(scored(failed, shards, unscored)), submitted, made


def test_a_part_is_published_each_time_that_enough_shards_are_new() -> None:
    add, submitted, _ = publishing(3)
    add(4)
    add(0)
    assert submitted.parts == []
    add(2)
    assert submitted.parts == [[0, 2, 4]]
    submitted.end()
    add(1)
    add(3, 5)
    assert submitted.parts == [[0, 2, 4], [0, 1, 2, 3, 4, 5]]


def test_adding_does_not_wait_and_what_is_finished_meanwhile_goes_with_the_next_part() -> None:
    add, submitted, _ = publishing(1)
    add(0)
    for shard in range(1, 5):
        add(shard)
    assert submitted.parts == [[0]]
    submitted.end()
    add(5)
    assert submitted.parts == [[0], [0, 1, 2, 3, 4, 5]]


def test_the_last_shards_are_left_to_the_end_of_the_run() -> None:
    add, submitted, _ = publishing(5)
    add(*range(5))
    submitted.end()
    add(*range(5, 10))
    assert submitted.parts == [[0, 1, 2, 3, 4]]


def test_shards_that_are_published_already_are_not_new() -> None:
    add, submitted, _ = publishing(2, Published(shards=frozenset({0, 1, 2})))
    add(0, 1, 2, 3)
    assert submitted.parts == []
    add(4)
    assert submitted.parts == [[0, 1, 2, 3, 4]]


def test_no_part_takes_the_place_of_a_version_that_has_more() -> None:
    add, submitted, _ = publishing(1, Published(replaced=frozenset({0, 1})))
    add(0)
    add(2)
    assert submitted.parts == []
    add(1)
    assert submitted.parts == [[0, 1, 2]]


def test_a_part_with_too_many_failures_waits_for_better_shards() -> None:
    add, submitted, _ = publishing(1)
    add(0, unscored=3)
    assert submitted.parts == []
    add(1, unscored=1)
    assert submitted.parts == [[0, 1]]


def test_nothing_is_published_once_the_gate_is_closed() -> None:
    gate = Gate()
    add, submitted, _ = publishing(1, gate=gate)
    gate.close()
    add(0)
    assert submitted.parts == []


def test_a_part_that_could_not_be_published_goes_with_the_next() -> None:
    add, submitted, made = publishing(2)

    @flow
    def run() -> None:
        add(0, 1)
        submitted.end(Failed(data=StorageError("the store is gone")))
        add(2)
        assert submitted.parts == [[0, 1], [0, 1, 2]]
        submitted.end()
        made.collect()
        add(3)
        assert len(submitted.parts) == 2

    run()
