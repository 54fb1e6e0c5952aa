"""Whatever ends a run in the middle, the next start ends with the same rows as a run that was never interrupted."""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from flow_builders import answers, files_of, job_values, write_job
from interrupted_runs import REWARDS, write_slow_rewards
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_DATABASE_CONNECTION_URL

from rollmill.flows.job_file import load_job
from rollmill.flows.rollout import rollout
from rollmill.storage.store import RolloutStore
from rollmill.storage.verify import verify_store

if TYPE_CHECKING:
    from conftest import FinishedRun

_SECONDS_AT_MOST = 120.0
_SECONDS_UNTIL_ALL_ARE_GONE = 5.0


@pytest.fixture
def job_file(policy: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job file whose store is `store` beside it; one prompt a shard gives many points to be interrupted at, and a
    reward that takes its time leaves shards to do after each."""
    monkeypatch.syspath_prepend(str(write_slow_rewards(tmp_path / "modules", 0.3)))
    values = job_values(policy, prompts, str(tmp_path / "store"), shards__prompts_per_shard=1, rewards=REWARDS)
    return write_job(tmp_path / "job.yaml", values)


def start(job_file: Path, prefect_home: Path | None = None) -> subprocess.Popen[str]:
    """Start `rollmill run` in a process group of its own, on the session's Prefect server, or on one that it starts
    itself and that keeps its records in `prefect_home`."""
    server = {"PREFECT_API_URL": str(PREFECT_API_URL.value())}
    if prefect_home is not None:
        server = {"PREFECT_HOME": str(prefect_home)}
    return subprocess.Popen(
        [sys.executable, "-m", "rollmill.cli", "run", str(job_file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **server},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def migrated_home(folder: Path) -> Path:
    """Return a Prefect home whose database has its tables already, for making them takes a server long."""
    folder.mkdir()
    source = str(PREFECT_SERVER_DATABASE_CONNECTION_URL.value()).rpartition(":///")[2]
    with closing(sqlite3.connect(source)) as ours, closing(sqlite3.connect(folder / "prefect.db")) as copy:
        ours.backup(copy)
    return folder


def wait_until(holds: Callable[[], bool], seconds: float = _SECONDS_AT_MOST) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def store_of(job_file: Path) -> RolloutStore:
    return RolloutStore(job_file.parent / "store")


def num_scored(job_file: Path) -> int:
    return len(list((job_file.parent / "store").glob("runs/tiny-v3/score-*/*.json")))


def children_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return every process under a run: engines, the Prefect server, and what they started."""
    return psutil.Process(process.pid).children(recursive=True)


def interrupt(process: subprocess.Popen[str], job_file: Path, number: signal.Signals) -> list[psutil.Process]:
    """Send a signal to a run once a random number of its 8 shards are there, and return the processes under it."""
    shards = random.randint(1, 5)
    wait_until(lambda: num_scored(job_file) >= shards or process.poll() is not None)
    children = children_of(process)
    process.send_signal(number)
    return children


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_goes_on_and_ends_with_the_rows_of_an_unbroken_one(
    job_file: Path, unbroken: FinishedRun, number: signal.Signals
) -> None:
    process = start(job_file)
    children = interrupt(process, job_file, number)
    process.communicate(timeout=60)
    assert process.returncode == -number
    before = num_scored(job_file)
    wait_until(lambda: not any(child.is_running() for child in children), _SECONDS_UNTIL_ALL_ARE_GONE)
    report = rollout(load_job(job_file))
    assert 0 < before < 8
    assert report.new_rows <= 4 * (8 - before)
    assert answers(store_of(job_file)) == answers(unbroken.store)
    assert verify_store(store_of(job_file)).problems == ()


def test_ctrl_c_keeps_the_finished_shards_leaves_no_process_and_says_how_to_go_on(
    job_file: Path, unbroken: FinishedRun, tmp_path: Path
) -> None:
    process = start(job_file, prefect_home=migrated_home(tmp_path / "prefect"))
    children = interrupt(process, job_file, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in err
    assert "Traceback" not in err
    wait_until(lambda: not any(child.is_running() for child in children), _SECONDS_UNTIL_ALL_ARE_GONE)
    rollout(load_job(job_file))
    assert answers(store_of(job_file)) == answers(unbroken.store)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_engine_costs_only_its_shards_and_is_told(
    job_file: Path, unbroken: FinishedRun, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    def kill_the_engine() -> None:
        wait_until(lambda: num_scored(job_file) >= 1)
        for child in psutil.Process().children(recursive=True):
            if "spawn_main" in " ".join(child.cmdline()):
                child.send_signal(number)

    killer = threading.Thread(target=kill_the_engine)
    killer.start()
    report = rollout(load_job(job_file))
    killer.join()
    assert report.figures.failed == 0
    assert re.search(r"shard-\d{5}: the engine on cpu .*; trying again", capsys.readouterr().err)
    assert answers(store_of(job_file)) == answers(unbroken.store)
    assert len(files_of(job_file.parent / "store", "generate")) == 8
