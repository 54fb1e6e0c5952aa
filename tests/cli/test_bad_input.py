"""Every wrong input is one clear line and exit status 2, before any weights load."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from builders import byte_tokenizer
from flow_builders import job_values, write_job
from seaweedfs import S3Place, S3Server
from transformers import BertConfig

from rollmill.flows.job import RolloutJob
from rollmill.flows.planning import plan_run
from rollmill.flows.preflight import check_job

if TYPE_CHECKING:
    from conftest import Ended, RunCommand


@pytest.fixture
def values(policy: Path, prompts: Path, tmp_path: Path) -> dict[str, Any]:
    return job_values(policy, prompts, str(tmp_path / "store"))


def refused(ended: Ended) -> str:
    """Return the one line with which a command refused its input."""
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("rollmill: ")
    assert ended.err.count("\n") == 1
    return ended.err


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("sampling.group_size=0", "sampling.group_size must be at least 1, got 0"),
        ("shards.prompts_per_shard=0", "shards.prompts_per_shard must be at least 1, got 0"),
        ("sampling.top_p=1.5", "sampling.top_p must be at most 1.0, got 1.5"),
        ("sampling.max_tokens=many", "sampling.max_tokens must be a whole number, got 'many'"),
        ("sampling.group_sise=4", "sampling.group_sise is an unknown key; did you mean group_size?"),
        ("rewards.0.wieght=2", "rewards.0.wieght is an unknown key; did you mean weight?"),
        ("polcy.model=x", "polcy is an unknown key; did you mean policy?"),
        ("runner.type=cloud", "runner must be of a type among 'local', 'ray', got {'type': 'cloud'}"),
        ("storage_options.secret=s3cr3t", "secret would be stored with the job: put credentials into the environment"),
        ("name=", "name must be text, got None"),
        ("rewards.7.weight=1", "7 is no place in a list of 1"),
        ("rewards", "must look like sampling.group_size=4"),
    ],
)
def test_a_wrong_field_is_named_with_its_path_and_what_would_be_right(
    command: RunCommand, values: dict[str, Any], tmp_path: Path, change: str, line: str
) -> None:
    job = write_job(tmp_path / "job.yaml", values)
    assert line in refused(command("run", job, "--set", change))


def test_all_wrong_fields_are_named_at_once(command: RunCommand, values: dict[str, Any], tmp_path: Path) -> None:
    values["sampling"]["group_size"] = 0
    del values["policy"]["model"]
    line = refused(command("run", write_job(tmp_path / "job.yaml", values)))
    assert "sampling.group_size must be at least 1, got 0" in line
    assert "policy.model is missing" in line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: a\nstore: [1", "line 2: not valid YAML"),
        ("name: a\nname: b", "line 2: not valid YAML: the key name occurs twice"),
        ("- name", "must hold a mapping of job fields"),
        ("", "must hold a mapping of job fields"),
        ("name: !!python/name:os.system", "line 1: not valid YAML"),
    ],
)
def test_a_file_that_is_no_job_is_refused_with_its_line(
    command: RunCommand, tmp_path: Path, text: str, line: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    assert line in refused(command("run", path))


def test_a_missing_job_file_is_named(command: RunCommand, tmp_path: Path) -> None:
    assert "nowhere.yaml: there is no such job file" in refused(command("run", tmp_path / "nowhere.yaml"))


def test_a_missing_prompt_file_is_named(command: RunCommand, values: dict[str, Any], tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.yaml", values)
    assert "nowhere.jsonl" in refused(command("run", job, "--set", f"prompts.source={tmp_path}/nowhere.jsonl"))


def test_a_missing_prompt_column_lists_those_there(command: RunCommand, values: dict[str, Any], tmp_path: Path) -> None:
    line = refused(command("run", write_job(tmp_path / "job.yaml", values), "--set", "prompts.prompt_column=question"))
    assert "question" in line
    assert "answer" in line


def test_a_reward_without_its_column_lists_those_there(
    command: RunCommand, values: dict[str, Any], tmp_path: Path
) -> None:
    values["rewards"] = [{"type": "exact_match", "answer_column": "solution"}]
    line = refused(command("run", write_job(tmp_path / "job.yaml", values)))
    assert "solution" in line
    assert "the prompts have answer" in line


def test_a_model_that_is_no_causal_language_model_is_refused(
    command: RunCommand, values: dict[str, Any], tmp_path: Path
) -> None:
    BertConfig(architectures=["BertForSequenceClassification"]).save_pretrained(tmp_path / "bert")
    byte_tokenizer().save_pretrained(tmp_path / "bert")
    values["policy"]["model"] = str(tmp_path / "bert")
    line = refused(command("run", write_job(tmp_path / "job.yaml", values)))
    assert "BertForSequenceClassification, not a causal language model" in line


def test_a_model_that_is_not_there_is_named(command: RunCommand, values: dict[str, Any], tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.yaml", values)
    assert "./no-such-model" in refused(command("run", job, "--set", "policy.model=./no-such-model"))


def test_a_gpu_that_is_not_there_is_refused(command: RunCommand, values: dict[str, Any], tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.yaml", values)
    assert "engine.devices: cuda:99" in refused(command("run", job, "--set", "engine.devices=cuda:99"))


def test_a_store_that_cannot_be_a_folder_is_refused(
    command: RunCommand, values: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    job = write_job(tmp_path / "job.yaml", values)
    assert str(tmp_path / "file") in refused(command("run", job, "--store", tmp_path / "file" / "store"))


def test_a_store_folder_that_is_not_writable_is_refused(
    command: RunCommand, values: dict[str, Any], tmp_path: Path
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if os.access(locked, os.W_OK):  # root may write to any folder but those of the kernel
        locked = Path("/proc/self")
    line = refused(command("run", write_job(tmp_path / "job.yaml", values), "--store", locked))
    assert str(locked) in line


def test_a_store_of_an_unknown_kind_is_refused(command: RunCommand, values: dict[str, Any], tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.yaml", values)
    assert "ftp:// is not supported" in refused(command("run", job, "--store", "ftp://host/rollouts"))


def test_an_unreachable_s3_server_is_refused(
    command: RunCommand, values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in S3Place("", "http://127.0.0.1:9", "key", "secret").environment.items():
        monkeypatch.setenv(name, value)
    job = write_job(tmp_path / "job.yaml", values)
    assert "s3://bucket/rollouts" in refused(command("run", job, "--store", "s3://bucket/rollouts"))


@pytest.mark.parametrize("wrong", ["bucket", "credentials"])
def test_a_wrong_bucket_or_wrong_credentials_are_refused(
    command: RunCommand,
    values: dict[str, Any],
    tmp_path: Path,
    s3: S3Place,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    wrong: str,
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    if wrong == "credentials":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = s3.url if wrong == "credentials" else "s3://no-such-bucket/rollouts"
    assert store in refused(command("run", write_job(tmp_path / "job.yaml", values), "--store", store))


def test_a_changed_job_under_an_existing_run_id_is_refused_by_the_field(
    command: RunCommand, values: dict[str, Any], tmp_path: Path, prefect: None
) -> None:
    _, prompts = plan_run(check_job(RolloutJob.model_validate(values)))
    prompts.close()
    line = refused(command("run", write_job(tmp_path / "job.yaml", values), "--set", "sampling.temperature=0.5"))
    assert "sampling.temperature was 1.0, now 0.5" in line
    assert "another run_id" in line


def test_a_dry_run_writes_nothing_and_loads_no_weights(
    command: RunCommand, values: dict[str, Any], tmp_path: Path
) -> None:
    ended = command("run", write_job(tmp_path / "job.yaml", values), "--dry-run", "--json")
    assert ended.status == 0
    outlook = json.loads(ended.out)
    assert {name: outlook[name] for name in ("num_prompts", "num_shards", "num_rows")} == {
        "num_prompts": 8,
        "num_shards": 3,
        "num_rows": 32,
    }
    assert outlook["num_prompt_tokens"] == len(outlook["prompt_text"]) == len("<|user|>Say 0.\n<|assistant|>")
    assert not (tmp_path / "store").exists()
