"""From a job to a training set: by one command, each night, whole or not at all, and counted alike everywhere."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import duckdb
import pytest
import yaml
from export_builders import all_files, records_of
from flow_builders import job_values, remove_all, write_job
from prefect.artifacts import Artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL

from rollmill.cli import main
from rollmill.errors import RunFailedError
from rollmill.flows.rejection_sampling import rejection_sampling
from rollmill.flows.rejection_sampling_job import RejectionSamplingJob
from rollmill.flows.rejection_sampling_report import RejectionSamplingReport
from rollmill.storage.store import RolloutStore
from rollmill.tasks.export.manifest import Manifest
from rollmill.tasks.report.figures import version_figures

if TYPE_CHECKING:
    from conftest import FinishedRun

ROOT = Path(__file__).parents[2]
NIGHT = datetime(2026, 1, 1, 2, tzinfo=UTC)
DAY = timedelta(days=1)


def section(out: Path, **changes: Any) -> dict[str, Any]:
    """Return a section `export`; answers of the tiny policy are mostly cut at the limit."""
    selection = {"min_reward": 1, "keep_truncated": True}
    return {"format": "sft", "out": str(out), "selection": selection, "test_fraction": 0.3, **changes}


def job_from(finished: FinishedRun, out: Path, *, changes: dict[str, Any] | None = None, **export: Any) -> Any:
    values = {**finished.job.model_dump(), "export": section(out, **export), **(changes or {})}
    return RejectionSamplingJob.model_validate(values)


def run_at(job: RejectionSamplingJob, time: datetime) -> RejectionSamplingReport:
    """Run the job as a worker runs a deployment's flow run that was scheduled for a time."""
    deployment_id = rejection_sampling.to_deployment("nightly").apply()
    assert isinstance(deployment_id, UUID)
    parameters = {"job": job.model_dump(mode="json")}
    created = run_deployment(deployment_id, parameters=parameters, timeout=0, scheduled_time=time)
    assert not asyncio.iscoroutine(created)
    assert isinstance(created, FlowRun)
    report = run_flow(rejection_sampling, flow_run=created, parameters={"job": job})
    assert isinstance(report, RejectionSamplingReport)
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(created.id).name == f"rejection-sampling-{report.rollouts.run_id}"
    return report


def killed_while_it_exports(path: Path) -> int:
    """Run a job in a process that kills itself where its training set's manifest would be put."""
    program = (
        "import sys; from store_builders import die_before\n"
        "from rollmill.flows import rejection_sampling_check as check\n"
        "from rollmill.flows.command import run_rejection_sampling\n"
        "from rollmill.flows.job_file import load_job\n"
        "open_as_ever = check.open_objects\n"
        "check.open_objects = lambda *place: die_before(open_as_ever(*place), 'put', 'manifest.json')\n"
        "if __name__ == '__main__':\n"
        "    run_rejection_sampling(load_job(sys.argv[1]))\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PREFECT_API_URL": str(PREFECT_API_URL.value()),
    }
    arguments = [sys.executable, "-c", program, str(path)]
    return subprocess.run(arguments, env=environment, timeout=120, check=False, stderr=subprocess.DEVNULL).returncode


def test_one_command_goes_from_the_job_to_the_set_however_often_it_is_killed(
    policy: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "set"
    values = job_values(policy, prompts, str(tmp_path / "store"), export=section(out))
    path = write_job(tmp_path / "job.yaml", values)

    def said(*changes: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["rollmill", "run", str(path), "--json", *changes])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (None, 0)
        return json.loads(capsys.readouterr().out)

    assert killed_while_it_exports(path) == -signal.SIGKILL
    assert list(out.glob("data/*/*.parquet"))
    assert not (out / "manifest.json").exists()
    again = said()
    assert (again["new_rows"], again["training_set"]["is_new"]) == (0, True)
    manifest = Manifest.from_bytes((out / "manifest.json").read_bytes(), "the set")
    assert chosen(out, manifest) == best_of(RolloutStore(tmp_path / "store"))
    before = set_in(out)
    assert said()["training_set"]["is_new"] is False
    said("--set", f"export.out={tmp_path / 'whole'}")
    assert set_in(out) == set_in(tmp_path / "whole") == before


def set_in(out: Path) -> dict[str, bytes]:
    return {path: data for path, data in all_files(out).items() if not path.startswith("_")}


def chosen(out: Path, manifest: Manifest) -> dict[str, str]:
    """Return the answers of a set by prompt."""
    records = [record for split in ("train", "test") for record in records_of(out, manifest, split)]
    assert len({record["prompt_id"] for record in records}) == len(records) > 0
    return {record["prompt_id"]: record["messages"][-1]["content"] for record in records}


def best_of(store: RolloutStore) -> dict[str, str]:
    """Return the first answer to each prompt that has the reward 1."""
    best: dict[str, str] = {}
    for row in store.latest().read().to_pylist():
        if row["reward"] == 1:
            best.setdefault(row["prompt_id"], row["response_text"])
    return best


def test_manifest_card_artifact_report_and_files_say_the_same_numbers(finished: FinishedRun, tmp_path: Path) -> None:
    out = tmp_path / "set"
    report = rejection_sampling(job_from(finished, out, min_records=1))
    manifest, card = report.training_set.manifest, (out / "README.md").read_text()
    artifact = Artifact.get("training-set")
    assert artifact is not None
    figures = version_figures(finished.store.latest()).figures
    stored = [str(finished.folder / file.file) for file in finished.store.latest().files]
    chosen = [str(out / file.path) for file in manifest.files]
    query = "select count(*), count(distinct prompt_id), avg(reward) from read_parquet($files)"
    rows, groups, mean = duckdb.execute(query, {"files": stored}).fetchone() or ()
    records, prompts, _ = duckdb.execute(query, {"files": chosen}).fetchone() or ()
    assert rows == figures.rows == report.rollouts.figures.rows == manifest.rows == 32
    assert groups == figures.groups == report.rollouts.figures.groups
    assert mean == pytest.approx(figures.mean_reward)
    assert mean == pytest.approx(report.rollouts.figures.mean_reward)
    assert mean == pytest.approx(manifest.mean_reward)
    assert records == prompts == manifest.records == manifest.kept == rows - sum(manifest.dropped.values())
    assert report.to_json()["training_set"]["records"] == records
    assert f"{records} records, made by rollmill of {records} of {rows} answers" in card
    assert f"The mean of all scored answers is {mean:.4f}." in card
    for text in (str(artifact.data), report.to_text()):
        assert f"{records} sft records in {out}" in text
        assert f"{records} of {rows} answers" in text
        for reason, number in manifest.dropped.items():
            assert f"{number} {reason}: " in text
            assert f"| `{reason}` | {number} |" in card
    assert f"| mean reward | {mean:.3f} |" in str(getattr(Artifact.get("rollout-report"), "data", None))


@dataclass(frozen=True, slots=True)
class Nights:
    """Two nights of a job that appends, the first of which lost the scores of a shard and was retried, in a store that
    has a run of another job too."""

    job: RejectionSamplingJob
    first: RejectionSamplingReport
    retried: RejectionSamplingReport
    second: RejectionSamplingReport

    @property
    def store(self) -> RolloutStore:
        return RolloutStore(self.job.store)


@pytest.fixture(scope="module")
def nights(unbroken: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    folder = tmp_path_factory.mktemp("nights")
    shutil.copytree(unbroken.folder, folder / "store")
    changes = {"name": "nightly", "store": str(folder / "store")}
    job: RejectionSamplingJob = job_from(unbroken, folder / "set", changes=changes, mode="append")
    first = run_at(job, NIGHT)
    remove_all((folder / "store").glob("data/nightly-*/score-*/00001-*.parquet"))
    retried = run_at(job, NIGHT)
    return Nights(job, first, retried, run_at(job, NIGHT + DAY))


def test_a_retried_night_goes_on_and_the_next_night_is_new(nights: Nights) -> None:
    runs = [report.rollouts.run_id for report in (nights.first, nights.retried, nights.second)]
    assert runs == ["nightly-v3-20260101T020000Z"] * 2 + ["nightly-v3-20260102T020000Z"]
    assert nights.first.rollouts.new_rows == nights.second.rollouts.new_rows == 32
    assert nights.retried.rollouts.new_rows == 0
    assert nights.retried.rollouts.figures == nights.first.rollouts.figures
    numbers = [report.rollouts.version for report in (nights.first, nights.retried, nights.second)]
    assert numbers == [2, 3, 4]
    assert answers_of(nights.store, 3) != answers_of(nights.store, 4)


def answers_of(store: RolloutStore, number: int) -> list[list[int]]:
    rows = store.version(number).read(["response_token_ids"])
    ids: list[list[int]] = rows["response_token_ids"].to_pylist()
    return ids


def test_append_makes_one_set_of_all_nights_and_counts_what_each_gave(nights: Nights) -> None:
    alone, both = nights.first.training_set.manifest, nights.second.training_set.manifest
    assert [source.run_id for source in both.sources] == [
        nights.second.rollouts.run_id,
        nights.first.rollouts.run_id,
    ]
    assert [source.rows for source in both.sources] == [32, 32]
    assert sum(source.records for source in both.sources) == both.records > alone.records
    out = Path(nights.job.export.out)
    records = [record for split in ("train", "test") for record in records_of(out, both, split)]
    assert Counter(record["run_id"] for record in records) == {s.run_id: s.records for s in both.sources}
    assert sorted(path for path in all_files(out) if path.startswith("data/")) == sorted(f.path for f in both.files)


def test_replace_makes_the_set_of_this_night_alone(nights: Nights, tmp_path: Path) -> None:
    changed = nights.job.export.model_copy(update={"mode": "replace", "out": str(tmp_path / "set")})
    report = run_at(nights.job.model_copy(update={"export": changed}), NIGHT + DAY)
    assert report.rollouts.new_rows == 0
    assert [source.run_id for source in report.training_set.manifest.sources] == [nights.second.rollouts.run_id]


def test_a_scheduled_time_names_the_run_and_draws_its_seed(finished: FinishedRun, tmp_path: Path) -> None:
    job = job_from(finished, tmp_path / "set")
    tonight = job.scheduled_for(NIGHT)
    assert job.scheduled_for(None) == job
    assert tonight == job.scheduled_for(NIGHT.astimezone(timezone(timedelta(hours=9))))
    assert tonight.resolved_run_id == "tiny-v3-20260101T020000Z"
    assert len({job.sampling.seed, tonight.sampling.seed, job.scheduled_for(NIGHT + DAY).sampling.seed}) == 3
    same = job_from(finished, tmp_path / "set", changes={"vary_seed": False}).scheduled_for(NIGHT)
    assert same.sampling == job.sampling
    named = job_from(finished, tmp_path / "set", changes={"run_id": "mine"})
    assert named.scheduled_for(NIGHT) == named


@pytest.mark.parametrize(
    ("run_id", "owned"),
    [
        ("tiny-v3", True),
        ("tiny-v12", True),
        ("tiny-v2-20250101T020000Z", True),
        ("tiny-v2-other", False),
        ("tiny-v1-v3", False),
        ("Tiny-v3", False),
    ],
)
def test_a_job_knows_its_runs_by_their_names(finished: FinishedRun, tmp_path: Path, run_id: str, owned: bool) -> None:
    assert job_from(finished, tmp_path / "set").owns(run_id) is owned


def test_too_few_records_leave_the_last_set_and_keep_the_rollouts(finished: FinishedRun, tmp_path: Path) -> None:
    out = tmp_path / "set"
    rejection_sampling(job_from(finished, out))
    before = set_in(out)
    selection = {"min_reward": 1, "keep_truncated": True, "max_tokens": 11}
    wanted: dict[str, Any] = {"selection": selection, "min_records": 9}
    with pytest.raises(RunFailedError) as refused:
        rejection_sampling(job_from(finished, out, **wanted))
    message = str(refused.value)
    assert "at least 9 are wanted; nothing was written. Dropped: " in message
    assert f"no training set was made, and {out} is as it was" in message
    assert "\n" not in message
    assert set_in(out) == before
    assert finished.store.latest().num_rows == 32


def test_a_run_that_stops_for_failed_rewards_makes_no_set_and_says_why(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = "def score(prompts, completions, **columns):\n    return [None for _ in completions]\n"
    (tmp_path / "silent_rewards.py").write_text(source)
    rewards = {"rewards": [{"type": "function", "path": "silent_rewards:score"}]}
    with pytest.raises(RunFailedError) as stopped:
        rejection_sampling(job_from(finished, tmp_path / "set", changes=rewards))
    assert "answers could not be scored" in str(stopped.value)
    assert f"no training set was made, and {tmp_path / 'set'} is as it was" in str(stopped.value)
    assert not (tmp_path / "set" / "manifest.json").exists()
    assert [version.number for version in finished.store.versions()] == [1]


def test_the_deployment_file_deploys_the_shipped_job_each_night(tmp_path: Path) -> None:
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="machines", type="process"), overwrite=True)
        file = ROOT / "deployments" / "prefect.yaml"
        ended = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--prefect-file", str(file), "--all"],
            env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value()), "PWD": str(tmp_path)},
            cwd=tmp_path, timeout=120, check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        deployed = client.read_deployment_by_name("rejection-sampling/nightly-sums")
    assert deployed.entrypoint == "rollmill.flows.rejection_sampling.rejection_sampling"
    assert [getattr(schedule.schedule, "cron", None) for schedule in deployed.schedules] == ["0 2 * * *"]
    assert deployed.job_variables["working_dir"] == str(tmp_path)
    assert not deployed.pull_steps
    shipped = yaml.safe_load((ROOT / "deployments" / "jobs" / "rejection_sampling.yaml").read_text())
    assert deployed.parameters == {"job": shipped}
    assert RejectionSamplingJob.model_validate(shipped).export.min_records == 2
