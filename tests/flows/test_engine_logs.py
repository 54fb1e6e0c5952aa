"""What an engine says reaches the log of the flow run that it works for."""

from __future__ import annotations

from pathlib import Path

from flow_builders import job_of
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.logging.handlers import APILogWorker

from rollmill.flows.rollout import rollout


def test_an_engines_log_lines_are_in_the_flow_runs_log(policy: Path, prompts: Path, tmp_path: Path) -> None:
    state = rollout(job_of(policy, prompts, str(tmp_path / "store")), return_state=True)
    assert state.is_completed()
    assert state.state_details.flow_run_id is not None
    APILogWorker.drain_all(timeout=10)
    of_the_run = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        messages = [log.message for log in client.read_logs(of_the_run)]
    assert any(message.startswith("engine on cpu (pid ") and "loaded" in message for message in messages)
