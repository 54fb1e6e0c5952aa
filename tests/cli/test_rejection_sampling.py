"""A rejection-sampling job whose training set has no place, or makes no sense, is refused before any weights load."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from export_builders import all_files, config_of, publish_answers
from flow_builders import job_values, write_job

from rollmill.storage.objects import open_objects
from rollmill.storage.store import RolloutStore
from rollmill.tasks.export.exporting import export_training_set

if TYPE_CHECKING:
    from conftest import Ended, RunCommand

WAYS = [[], ["--dry-run"]]


@pytest.fixture
def values(policy: Path, prompts: Path, tmp_path: Path, prefect: None) -> dict[str, Any]:
    export = {"format": "sft", "out": str(tmp_path / "set"), "selection": {"min_reward": 1}}
    return job_values(policy, prompts, str(tmp_path / "store"), export=export)


def refused(ended: Ended) -> str:
    """Return the one line with which a command refused its input."""
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    return ended.err


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("export.selection.min_pass_rate=0.9", "max_pass_rate must be at least min_pass_rate, got 0.5 < 0.9"),
        ("export.selection.match=(", "export.selection.match: "),
        ("export.format=csv", "export.format must be 'sft', 'dpo', 'kto' or 'table', got 'csv'"),
        ("export.min_records=0", "export.min_records must be at least 1, got 0"),
        ("export.selection.min_rewards=1", "export.selection.min_rewards is an unknown key; did you mean min_reward?"),
        ("export.out=", "export.out must be text, got None"),
        ("exprot.out=x", "exprot is an unknown key; did you mean export?"),
        ("export.storage_options.secret=x", "put credentials into the environment"),
    ],
)
def test_a_wrong_field_of_the_export_is_named_with_what_would_be_right(
    command: RunCommand, values: dict[str, Any], tmp_path: Path, change: str, line: str
) -> None:
    values["export"]["selection"]["max_pass_rate"] = 0.5
    assert line in refused(command("run", write_job(tmp_path / "job.yaml", values), "--set", change))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("out", ["store", "store/sets", "store/../store", "."])
def test_a_set_and_its_store_may_not_lie_one_in_the_other(
    command: RunCommand, values: dict[str, Any], tmp_path: Path, out: str, way: list[str]
) -> None:
    change = f"export.out={tmp_path}/{out}"
    line = refused(command("run", write_job(tmp_path / "job.yaml", values), "--set", change, *way))
    assert "may not lie one in the other; give another export.out" in line
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("way", WAYS)
def test_a_place_that_cannot_be_written_is_refused(
    command: RunCommand, values: dict[str, Any], tmp_path: Path, way: list[str]
) -> None:
    job = write_job(tmp_path / "job.yaml", values)
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused(command("run", job, "--set", f"export.out={tmp_path}/file/set", *way))
    assert "ftp:// is not supported" in refused(command("run", job, "--set", "export.out=ftp://host/set", *way))
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if not os.access(locked, os.W_OK):  # root may write to any folder
        assert "may not be written to" in refused(command("run", job, "--set", f"export.out={locked}/set", *way))


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_an_earlier_set_of_the_job_is_not_replaced(
    command: RunCommand, values: dict[str, Any], tmp_path: Path, way: list[str]
) -> None:
    job = write_job(tmp_path / "job.yaml", values)
    publish_answers(open_objects(str(tmp_path / "others")), run_id="other-v1")
    export_training_set(RolloutStore(tmp_path / "others"), open_objects(str(tmp_path / "set")), config_of())
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README.md").write_text("# My notes")
    before = all_files(tmp_path)
    line = refused(command("run", job, *way))
    assert "holds a training set of another job (of run other-v1 in store others); remove it" in line
    line = refused(command("run", job, "--set", f"export.out={tmp_path}/notes", *way))
    assert "holds a README.md of something else; remove it, or give another export.out" in line
    line = refused(command("run", job, "--set", f"export.out={tmp_path}/others", *way))
    assert "is a rollout store; give another export.out" in line
    assert all_files(tmp_path) == before


def test_a_dry_run_says_what_becomes_of_the_rollouts_and_writes_nothing(
    command: RunCommand, values: dict[str, Any], tmp_path: Path
) -> None:
    job = write_job(tmp_path / "job.yaml", values)
    outlook = json.loads(command("run", job, "--dry-run", "--json").out)
    assert outlook["training_set"] == f"sft records of this run in {tmp_path / 'set'}"
    shown = command("run", job, "--dry-run", "--set", "export.mode=append").out
    assert f"\nset      sft records of all runs of this job in {tmp_path / 'set'}\n" in shown
    assert sorted(all_files(tmp_path)) == ["job.yaml"]
