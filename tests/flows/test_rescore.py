"""Rescoring: the same answers with other rewards, as a dataset version of its own."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from rollmill.errors import JobError, ObjectMissingError, RunFailedError
from rollmill.flows.job import RolloutJob
from rollmill.flows.rescore import rescore
from rollmill.flows.rescore_job import RescoreJob
from rollmill.flows.rollout import rollout
from rollmill.storage.schema import RESPONSE_SCHEMA
from rollmill.storage.verify import verify_store
from rollmill.tasks.row_filter import RowFilter

if TYPE_CHECKING:
    from conftest import FinishedRun

LENGTH = {"type": "length", "max": 3, "unit": "characters"}
NO_ANSWER = {"type": "exact_match", "answer_column": "answer.nothing"}
REWARD_COLUMNS = {"reward", "reward_status", "reward_error", "reward_parts"}


def job_of(finished: FinishedRun, *rewards: dict[str, Any], **fields: Any) -> RescoreJob:
    return RescoreJob.model_validate({"store": finished.job.store, "rewards": list(rewards) or None, **fields})


def metadata(rows: pa.Table) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in rows.schema.metadata.items()}


def same_answers(one: pa.Table, other: pa.Table) -> bool:
    """Whether two tables agree to the bit but for what the rewards gave."""
    columns = [name for name in RESPONSE_SCHEMA.names if name not in REWARD_COLUMNS]
    return all(one[name].combine_chunks().equals(other[name].combine_chunks()) for name in columns)


def test_a_new_version_has_the_same_answers_and_new_rewards(
    finished: FinishedRun, policy: Path, tmp_path: Path
) -> None:
    before = finished.store.version(1).read()
    policy.rename(tmp_path / "elsewhere")
    try:
        report = rescore(job_of(finished, LENGTH))
    finally:
        (tmp_path / "elsewhere").rename(policy)
    after = finished.store.latest().read()
    assert (report.version, report.from_version, report.figures.unscored) == (2, 1, 0)
    assert same_answers(before, after)
    assert after["reward"].to_pylist() == [float(len(text) <= 3) for text in after["response_text"].to_pylist()]
    assert finished.store.version(1).read().equals(before)
    assert report.before == finished.report.figures
    assert verify_store(finished.store).problems == ()


def test_files_say_what_they_were_scored_by_and_from_which_version(finished: FinishedRun) -> None:
    original = metadata(finished.store.version(1).read())
    rescore(job_of(finished, LENGTH))
    said = metadata(finished.store.latest().read())
    assert json.loads(said.pop("rewards")) == [{**LENGTH}]
    assert said.pop("rescored_from") == "1"
    assert json.loads(original.pop("rewards")) == finished.job.model_dump(exclude_defaults=True)["rewards"]
    assert said == original


def test_a_condition_leaves_all_other_rows_as_they_are(finished: FinishedRun) -> None:
    before = finished.store.latest().read()
    rescore(job_of(finished, LENGTH, where="reward < 1 and sample_index in [0, 2]"))
    after = finished.store.latest().read()
    assert same_answers(before, after)
    chosen = 0
    for old, new in zip(before.to_pylist(), after.to_pylist(), strict=True):
        if old["reward"] < 1 and old["sample_index"] in (0, 2):
            chosen += 1
            assert new["reward_parts"][0]["name"] == "length"
        else:
            assert new == old
    assert 0 < chosen < 32
    said = metadata(after)
    assert said["rescored_where"] == "(reward < 1 and sample_index in [0, 2])"
    assert json.loads(said["other_rewards"])[0]["type"] == "regex"
    with pytest.raises(JobError, match="scored by different rewards"):
        rescore(job_of(finished, failed=True))


def test_scoring_failed_rows_again_takes_the_rewards_that_they_had(finished: FinishedRun) -> None:
    broken = {"rewards": [{**NO_ANSWER}], "max_failed_fraction": 1}
    rollout(RolloutJob.model_validate({**finished.job.model_dump(), **broken}))
    assert finished.store.latest().read(["reward"])["reward"].null_count == 32
    with pytest.raises(RunFailedError, match="32 × exact_match"):
        rescore(job_of(finished, failed=True, max_failed_fraction=0.5))
    assert len(finished.store.versions()) == 2
    report = rescore(job_of(finished, LENGTH, failed=True))
    assert (report.version, report.figures.unscored) == (3, 0)
    assert finished.store.latest().read(["reward"])["reward"].null_count == 0


def test_the_same_rescoring_of_a_version_goes_on_with_what_is_scored(finished: FinishedRun) -> None:
    first = rescore(job_of(finished, LENGTH, version=1))
    files = sorted(finished.folder.rglob("*.parquet"))
    assert rescore(job_of(finished, LENGTH, version=1)).version == first.version
    assert sorted(finished.folder.rglob("*.parquet")) == files
    assert rescore(job_of(finished, LENGTH)).version == 3


def test_each_version_and_each_choice_of_rows_is_scored_for_itself(finished: FinishedRun) -> None:
    rescore(job_of(finished, {"type": "regex", "pattern": "[n-z]"}))
    made: dict[int, str] = {}
    for version in (1, 2):
        before = finished.store.version(version).read()
        for where in (None, "sample_index == 0", "reward < 1"):
            fields = {} if where is None else {"where": where}
            number = rescore(job_of(finished, LENGTH, version=version, **fields)).version
            made[number] = finished.store.version(number).entry.stage
            after = finished.store.version(number).read()
            chosen = [True] * 32 if where is None else RowFilter(where).chosen(before)
            texts, kept = after["response_text"].to_pylist(), before["reward"].to_pylist()
            expected = [
                float(len(text) <= 3) if new else old for text, old, new in zip(texts, kept, chosen, strict=True)
            ]
            assert after["reward"].to_pylist() == expected
            assert same_answers(before, after)
    assert len(made) == len(set(made.values())) == 6
    assert verify_store(finished.store).problems == ()


def test_an_edited_reward_function_scores_anew(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "edited_rewards.py"
    for number, value in ((2, 0.25), (3, 0.5)):  # of other length, as stale bytecode would not show in the same second
        file.write_text(f"def score(prompts, completions, **columns):\n    return [{value}] * len(completions)\n")
        monkeypatch.delitem(sys.modules, "edited_rewards", raising=False)
        importlib.invalidate_caches()
        report = rescore(job_of(finished, {"type": "function", "path": "edited_rewards:score"}, version=1))
        assert (report.version, report.figures.mean_reward) == (number, value)


def test_a_version_or_a_column_that_is_not_there_is_refused(finished: FinishedRun) -> None:
    with pytest.raises(ObjectMissingError, match="no version 9; its versions are 1 to 1"):
        rescore(job_of(finished, LENGTH, version=9))
    with pytest.raises(JobError, match="needs the column solution; the prompts have answer"):
        rescore(job_of(finished, {"type": "exact_match", "answer_column": "solution"}))


def test_a_reward_that_sees_special_tokens_sees_them(finished: FinishedRun) -> None:
    reward = {"type": "regex", "pattern": "</s>$", "view": "special_tokens"}
    report = rescore(job_of(finished, reward))
    rows = finished.store.latest().read(["finish_reason", "reward"]).to_pylist()
    assert report.figures.unscored == 0
    assert {row["reward"] for row in rows if row["finish_reason"] == "length"} <= {0.0}
    assert {row["reward"] for row in rows if row["finish_reason"] == "stop"} <= {1.0}
