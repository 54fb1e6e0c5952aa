from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from store_builders import plan_of, write_run

from rollmill.storage.objects import open_objects
from rollmill.storage.pins import pin
from rollmill.storage.publish import publish_run

if TYPE_CHECKING:
    from conftest import RunCommand

ORPHAN = "data/run/generate/00000-0123456789abcdef.parquet"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A published store with a file that a killed worker left ten days ago."""
    objects = open_objects(str(tmp_path))
    write_run(objects, plan_of())
    publish_run(objects, plan_of(), "generate", policy_version=1)
    objects.put(ORPHAN, b"never committed")
    _make_old(tmp_path)
    return tmp_path


def test_a_dry_run_names_what_a_vacuum_would_remove(command: RunCommand, store: Path) -> None:
    ended = command("vacuum", store, "--dry-run")
    assert (ended.status, ended.err) == (0, "")
    assert (
        ended.out
        == f"{ORPHAN}\nwould remove 1 objects, 15 bytes; kept 6 older ones that are in use and 0 that are not 7d old\n"
    )
    assert (store / ORPHAN).exists()


def test_a_vacuum_removes_it_and_says_so_as_json(command: RunCommand, store: Path) -> None:
    pin(open_objects(str(store)), "trainer", 1, seconds=60)
    said = json.loads(command("vacuum", store, "--older-than", "1w", "--json").out)
    assert said == {
        "removed": [ORPHAN],
        "bytes": 15,
        "dry_run": False,
        "pins": {"trainer": 1},
        "retired": [],
        "referenced": 6,
        "young": 0,
    }
    assert not (store / ORPHAN).exists()
    assert command("verify", store).status == 0
    assert json.loads(command("vacuum", store, "--json").out)["removed"] == []


def test_what_is_not_old_enough_stays(command: RunCommand, store: Path) -> None:
    assert "removed 0 objects" in command("vacuum", store, "--older-than", "2w").out
    assert (store / ORPHAN).exists()


def test_runs_of_older_versions_than_are_kept_are_retired(command: RunCommand, store: Path) -> None:
    write_run(open_objects(str(store)), plan_of("newer"))
    publish_run(open_objects(str(store)), plan_of("newer"), "generate", policy_version=1)
    _make_old(store)
    planned = command("vacuum", store, "--keep-versions", "1", "--dry-run")
    assert "would remove 7 objects" in planned.out
    assert "run run would be retired" in planned.out
    done = command("vacuum", store, "--keep-versions", "1")
    assert "removed 7 objects" in done.out
    assert "run run is retired" in done.out
    assert command("verify", store).status == 0
    rows = json.loads(command("ls", store, "--json").out)
    assert [(row["version"], row["retired"]) for row in rows] == [(1, True), (2, False)]
    assert "retired" in command("ls", store).out
    refused = command("vacuum", store, "--keep-versions", "0")
    assert (refused.status, refused.out) == (2, "")
    assert "keep-versions must be at least 1" in refused.err


@pytest.mark.parametrize(
    ("age", "reason"),
    [
        ("7", "--older-than must be a number with m, h, d or w, as in 12h or 7d, got '7'"),
        ("-7d", "--older-than must be a number"),
        ("30m", "older-than must be at least 1h"),
    ],
)
def test_an_age_that_makes_no_sense_is_refused(command: RunCommand, store: Path, age: str, reason: str) -> None:
    ended = command("vacuum", store, f"--older-than={age}")
    assert (ended.status, ended.out) == (2, "")
    assert reason in ended.err
    assert (store / ORPHAN).exists()


def test_a_folder_that_is_no_store_is_not_vacuumed(command: RunCommand, tmp_path: Path) -> None:
    ended = command("vacuum", tmp_path)
    assert ended.status == 1
    assert f"there is no rollout store in {tmp_path}; nothing was removed" in ended.err


def test_a_usable_store_is_told_so_a_line_each(command: RunCommand, store: Path) -> None:
    ended = command("probe", store)
    lines = ended.out.splitlines()
    assert ended.status == 0
    assert lines[-1] == f"{store} can be used"
    assert all(line.startswith("ok ") for line in lines[:-1])
    said = json.loads(command("probe", store, "--json").out)
    assert said["fit"]
    assert [finding["name"] for finding in said["findings"]][:2] == ["reachable", "format"]


def test_an_unusable_store_is_told_so_with_status_1(command: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = command("probe", tmp_path / "file")
    assert ended.status == 1
    assert ended.out.startswith("FAIL  reachable  ")
    assert ended.out.endswith(f"{tmp_path / 'file'} must not be used\n")
    assert not json.loads(command("probe", tmp_path / "file", "--json").out)["fit"]


def _make_old(folder: Path) -> None:
    moment = time.time() - 10 * 86400
    for path in folder.rglob("*"):
        os.utime(path, (moment, moment))
