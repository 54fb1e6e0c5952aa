"""The whole job: what it stores, what it does again, and what it does not."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from flow_builders import answers, files_of, job_of, remove_all
from seaweedfs import S3Place

from rollmill.errors import CorruptDataError, PlanMismatchError, RunFailedError
from rollmill.flows.planning import plan_run
from rollmill.flows.preflight import check_job
from rollmill.flows.rollout import rollout
from rollmill.storage.store import RolloutStore
from rollmill.storage.verify import verify_store
from rollmill.tasks.planning import ShardPrompts

if TYPE_CHECKING:
    from conftest import FinishedRun


def test_a_job_becomes_a_sound_dataset_version(unbroken: FinishedRun) -> None:
    version = unbroken.store.latest()
    assert (version.number, version.policy_version, version.group_size) == (1, 3, 4)
    assert (version.num_rows, version.num_groups, len(version.files)) == (32, 8, 3)
    assert verify_store(unbroken.store).problems == ()


def test_the_report_says_what_the_rows_say(unbroken: FinishedRun) -> None:
    rows = unbroken.store.latest().read().to_pandas()
    figures = unbroken.report.figures
    passes = (rows["reward"] >= 1).groupby(rows["prompt_id"])
    assert (figures.rows, figures.groups, figures.failed, figures.unscored) == (32, 8, 0, 0)
    assert figures.truncated == (rows["finish_reason"] == "length").sum()
    assert figures.response_tokens == rows["response_token_ids"].map(len).sum() == unbroken.report.new_tokens
    assert unbroken.report.usage.tokens == figures.response_tokens
    assert figures.mean_reward == pytest.approx(rows["reward"].mean())
    assert 0 < rows["reward"].mean() < 1
    assert figures.pass_at(1) == pytest.approx(passes.mean().mean())
    assert figures.pass_at(4) == pytest.approx(passes.any().mean())
    assert figures.pass_at(8) is None
    assert {sample.reward for sample in unbroken.report.samples} == {0.0, 1.0}


def test_rows_hold_what_a_trainer_needs_to_trust_them(unbroken: FinishedRun, policy: Path) -> None:
    rows = unbroken.store.latest().read()
    metadata = {name.decode(): value.decode() for name, value in rows.schema.metadata.items()}
    assert metadata["logprob_mode"] == "processed"
    assert json.loads(metadata["policy"])["model"] == str(policy)
    assert json.loads(metadata["sampling"])["max_tokens"] == 12
    row = rows.to_pylist()[0]
    assert row["prompt_text"] == "<|user|>Say 0.\n<|assistant|>"
    assert json.loads(row["metadata"]) == {"answer": "0"}
    assert len({row["seed"] for row in rows.to_pylist()}) == 32


def test_a_second_run_of_a_finished_job_generates_nothing_and_starts_no_engine(finished: FinishedRun) -> None:
    files = sorted(finished.folder.rglob("*.parquet"))
    seconds_before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    report = rollout(finished.job)
    assert (report.new_rows, report.new_tokens, report.version) == (0, 0, 1)
    assert report.figures == finished.report.figures
    assert report.usage == finished.report.usage
    assert sorted(finished.folder.rglob("*.parquet")) == files
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime == seconds_before


def test_only_the_shard_whose_files_are_gone_is_made_again(finished: FinishedRun, unbroken: FinishedRun) -> None:
    stages = [files_of(finished.folder, stage) for stage in ("generate", "score")]
    kept = [path for files in stages for index, path in files.items() if index]
    remove_all(files[0] for files in stages)
    report = rollout(finished.job)
    assert report.new_rows == 12
    assert set(kept) < set(finished.folder.rglob("*.parquet"))
    assert answers(finished.store) == answers(unbroken.store)
    assert verify_store(finished.store).problems == ()


def test_a_lost_scored_file_is_scored_again_without_generating(finished: FinishedRun, unbroken: FinishedRun) -> None:
    remove_all([files_of(finished.folder, "score")[2]])
    assert rollout(finished.job).new_rows == 0
    assert answers(finished.store) == answers(unbroken.store)


def test_changed_rewards_score_the_same_answers_again(finished: FinishedRun, unbroken: FinishedRun) -> None:
    rewards = [{"type": "length", "max": 3, "unit": "characters"}]
    report = rollout(type(finished.job).model_validate({**finished.job.model_dump(), "rewards": rewards}))
    assert (report.new_rows, report.version) == (0, 2)
    assert answers(finished.store) == answers(unbroken.store)
    assert finished.store.version(1).read(["reward"]) != finished.store.version(2).read(["reward"])


def test_a_store_on_s3_holds_the_same_answers_whatever_the_shards(
    unbroken: FinishedRun, policy: Path, prompts: Path, s3: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    rollout(job_of(policy, prompts, s3.url, shards__prompts_per_shard=5, engine__max_batch_size=3))
    store = RolloutStore(s3.url)
    assert answers(store) == answers(unbroken.store)
    assert verify_store(store).problems == ()


def test_a_changed_job_under_an_existing_run_id_is_refused_by_the_field(finished: FinishedRun) -> None:
    changed = finished.job.model_copy(update={"sampling": finished.job.sampling.model_copy(update={"seed": 6})})
    with pytest.raises(PlanMismatchError, match=r"sampling\.seed was 5, now 6"):
        rollout(changed)


def test_rows_that_cannot_be_asked_cost_only_themselves(policy: Path, tmp_path: Path) -> None:
    source = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "Say 1."}, {"prompt": ""}, {"prompt": "x" * 600}, {"prompt": "Say 2."}]
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"prompt": \n')
    report = rollout(job_of(policy, source, str(tmp_path / "store"), sampling__max_tokens=2))
    rows = RolloutStore(str(tmp_path / "store")).latest().read().to_pylist()
    assert [row["finish_reason"] == "error" for row in rows[::4]] == [False, True, True, False, True]
    assert all(row["error"] for row in rows if row["finish_reason"] == "error")
    assert {row["reward_status"] for row in rows if row["finish_reason"] == "error"} == {"skipped"}
    assert (report.figures.rows, report.figures.failed, report.figures.scored) == (20, 12, 8)


def test_other_shards_finish_before_a_run_fails_and_the_message_says_how_to_go_on(
    policy: Path, prompts: Path, tmp_path: Path
) -> None:
    job = job_of(policy, prompts, str(tmp_path / "store"))
    checked = check_job(job)
    plan, dataset = plan_run(checked)
    with dataset:
        ShardPrompts(checked.run, dataset).of(plan.shards[1])
    broken = files_of(tmp_path / "store", "prompts")[1]
    broken.write_bytes(b"x" * broken.stat().st_size)
    with pytest.raises(RunFailedError, match=r"shard-00001 failed.*the same command goes on") as caught:
        rollout(job)
    assert isinstance(caught.value.__cause__, CorruptDataError)
    assert sorted(files_of(tmp_path / "store", "score")) == [0, 2]
