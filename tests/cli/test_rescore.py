"""`rollmill rescore` and `rollmill show --failed`, from what is typed to what is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from store_builders import plan_of, write_run

from rollmill.errors import JobError
from rollmill.flows.reward_options import read_rewards
from rollmill.storage.objects import open_objects
from rollmill.storage.publish import publish_run
from rollmill.storage.store import RolloutStore
from rollmill.storage.verify import verify_store

if TYPE_CHECKING:
    from conftest import RunCommand


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A published store of 15 answers by a policy that is nowhere."""
    folder = tmp_path / "store"
    objects = open_objects(str(folder))
    write_run(objects, plan_of())
    publish_run(objects, plan_of(), "generate", policy_version=1)
    return folder


@pytest.mark.parametrize(
    ("option", "rewards"),
    [
        ("last_number", [{"type": "last_number"}]),
        ("length:max=200,weight=0.1", [{"type": "length", "max": 200, "weight": 0.1}]),
        ("function:path=ours.rewards:score", [{"type": "function", "path": "ours.rewards:score"}]),
        ('{type: regex, pattern: "a,b"}', [{"type": "regex", "pattern": "a,b"}]),
        ('{"type": "contains", "ignore_case": true}', [{"type": "contains", "ignore_case": True}]),
    ],
)
def test_a_reward_is_typed_as_a_kind_or_as_a_mapping(option: str, rewards: list[dict[str, Any]]) -> None:
    assert read_rewards([option]) == rewards


def test_a_reward_may_be_a_job_file_a_list_or_one_reward_in_a_file(tmp_path: Path) -> None:
    rewards = [{"type": "math"}, {"type": "length", "max": 9}]
    path = tmp_path / "rewards.yaml"
    for held, read in (({"name": "job", "rewards": rewards}, rewards), (rewards, rewards), (rewards[0], rewards[:1])):
        path.write_text(yaml.safe_dump(held))
        assert read_rewards([str(path)]) == read
    path.write_text("name: job\n")
    with pytest.raises(JobError, match="must hold a job, a list of rewards, or one reward with its type"):
        read_rewards([str(path)])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "name the rewards to score by, or failed"),
        (["--reward", "lenth:max=3"], "rewards.0 must be of a type among"),
        (["--reward", "length:wieght=3"], "rewards.0.wieght is an unknown key; did you mean weight?"),
        (["--reward", "regex:pattern=a,b"], "'b' must look like name=value"),
        (["--reward", "nowhere.yaml"], "nowhere.yaml: there is no such job file"),
        (["--reward", "math", "--where", "rewrad < 1"], "there is no column rewrad"),
        (["--reward", "math", "--version", "0"], "version must be at least 1, got 0"),
        (["--failed", "--max-failed-fraction", "2"], "max_failed_fraction must be at most 1"),
        (["--failed"], "version 1 of {store} does not say which rewards it was scored by; name them"),
        (["--reward", "exact_match:answer_column=truth"], "needs the column truth; the prompts have answer"),
    ],
)
def test_wrong_input_is_one_line(
    command: RunCommand, store: Path, prefect: None, arguments: list[str], line: str
) -> None:
    ended = command("rescore", store, *arguments)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert line.format(store=store) in ended.err


def test_a_rescored_store_is_sound_and_its_failures_are_listed(command: RunCommand, store: Path, prefect: None) -> None:
    tests = ["--reward", "code", "--reward", "length:max=2", "--max-failed-fraction", "1"]
    refused = command("rescore", store, *tests)
    assert (refused.status, "a column of tests" in refused.err) == (2, True)
    ended = command("rescore", store, "--reward", "regex:pattern=answer 1,group=3", "--json")
    assert ended.status == 2
    ended = command("rescore", store, "--reward", "reasoning_gym", "--reward", "length:max=2")
    assert ended.status == 2
    ended = command("rescore", store, "--reward", "contains", "--reward", "length:max=2,weight=0.5", "--json")
    assert ended.status == 0
    result = json.loads(ended.out)
    assert (result["version"], result["from_version"], result["figures"]["unscored"]) == (2, 1, 0)
    versions = json.loads(command("ls", store, "--json").out)
    assert [version["scored"].partition("-")[0] for version in versions] == ["generate", "rescore"]
    assert verify_store(RolloutStore(store)).problems == ()


def test_failed_answers_are_listed_with_their_reasons(command: RunCommand, tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path))
    failed = {"reward": None, "reward_status": "failed", "reward_error": "judge: timed out after 3 s"}
    write_run(objects, plan_of(), **failed)
    publish_run(objects, plan_of(), "generate", policy_version=1)
    ended = command("show", tmp_path, "--failed", "--groups", "2")
    assert ended.status == 0
    assert "15 × judge: timed out after 3 s" in ended.out
    assert ended.out.count("judge: timed out") == 1 + 6
    assert "and 9 more; --groups 5 shows all" in ended.out
    listed = json.loads(command("show", tmp_path, "--failed", "--json").out)
    assert listed["reasons"] == {"judge: timed out after 3 s": 15}
    assert [row["sample_index"] for row in listed["failed_answers"]] == [0, 1, 2] * 5


def test_a_store_without_failures_says_so(command: RunCommand, store: Path) -> None:
    assert "every answer of version 1 that could be scored has a reward" in command("show", store, "--failed").out
