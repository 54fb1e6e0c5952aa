"""What a run leaves in Prefect: names that read, artifacts, and no results."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from flow_builders import files_of, remove_all
from prefect.artifacts import Artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import TaskRun
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, PREFECT_RESULTS_PERSIST_BY_DEFAULT, temporary_settings

from rollmill.flows.job import RolloutJob
from rollmill.flows.rollout import rollout

if TYPE_CHECKING:
    from conftest import FinishedRun


def test_runs_and_tasks_are_named_so_that_they_read(finished: FinishedRun) -> None:
    remove_all(files_of(finished.folder, stage)[1] for stage in ("generate", "score"))
    state = rollout(finished.job, return_state=True)
    only_this = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
    task_runs: list[TaskRun] = []
    deadline = time.monotonic() + 60
    with get_client(sync_client=True) as client:
        (flow_run,) = client.read_flow_runs(flow_run_filter=only_this)
        while len(task_runs) < 4 or not all(run.state and run.state.is_completed() for run in task_runs):
            assert time.monotonic() < deadline, [(run.name, run.state) for run in task_runs]
            task_runs = client.read_task_runs(flow_run_filter=only_this)  # states arrive as events, a moment later
    assert flow_run.name == "rollout-tiny-v3"
    job = finished.job
    tags = {f"policy:{job.policy.model}", "policy-version:3", f"dataset:{job.prompts.source}"}
    assert set(flow_run.tags) == tags
    assert {run.name for run in task_runs} == {"plan", "shard-00001", "shard-00001-score", "publish"}
    assert RolloutJob.model_validate(flow_run.parameters["job"]) == finished.job


def test_a_run_leaves_a_link_to_its_version_a_shard_table_a_report_and_its_progress(finished: FinishedRun) -> None:
    rollout(finished.job)
    link = Artifact.get("rollout-version")
    assert link is not None
    address = (finished.folder / "log" / "000000000001.json").as_uri()
    assert str(link.data) == f"[version 1 of {finished.folder}]({address})"
    table, report, progress = (Artifact.get(f"rollout-{name}") for name in ("shards", "report", "progress"))
    assert table is not None
    assert report is not None
    assert progress is not None
    rows = json.loads(str(table.data))
    assert [(row["shard"], row["rows"]) for row in rows] == [(0, 12), (1, 12), (2, 8)]
    assert sum(row["tokens"] for row in rows) == finished.report.figures.response_tokens
    assert "# tiny-v3" in str(report.data)
    assert f"{finished.report.figures.mean_reward:.3f}" in str(report.data)
    assert (progress.data, progress.description) == (100.0, "finished: 32/32 rows")


def test_prefect_persists_no_result_even_where_that_is_its_default(finished: FinishedRun, tmp_path: Path) -> None:
    remove_all([files_of(finished.folder, "score")[0]])
    folder = tmp_path / "results"
    with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: folder, PREFECT_RESULTS_PERSIST_BY_DEFAULT: True}):
        rollout(finished.job)
    assert [path for path in folder.rglob("*") if path.is_file()] == []
