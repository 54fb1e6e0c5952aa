"""Jobs from Prefect's API name only the code and the variables that the worker allows; keys stay out of everything."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.blocks.system import Secret
from prefect.client.orchestration import get_client
from prefect.deployments import run_deployment
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_SERVER_DATABASE_CONNECTION_URL

from rollmill.errors import JobError
from rollmill.flows.api_keys import load_secret
from rollmill.flows.job import RolloutJob
from rollmill.flows.prefect_server import settle
from rollmill.flows.rollout import rollout
from rollmill.tasks.generation.runner_config import RayRunner

if TYPE_CHECKING:
    from conftest import FinishedRun

KEY = "sk-a-very-secret-value-0123456789"
VARIABLE = "ROLLMILL_TEST_API_KEY"


class Service:
    """A reward service that takes one answer at a time, and refuses some; a refusal repeats the key."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/score"
        threading.Thread(target=self.server.serve_forever, args=(0.05,)).start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                responses = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["responses"]
                service.keys.append(self.headers["Authorization"])
                refused = len(responses) > 1 or responses[0][:1] < "a"
                body = f"no, {self.headers['Authorization']}" if refused else "[1.0]"
                self.send_response(400 if refused else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *arguments: object) -> None:
                return None

        return Handler


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.server.shutdown()
    service.server.server_close()


def with_rewards(finished: FinishedRun, *rewards: dict[str, Any]) -> RolloutJob:
    return RolloutJob.model_validate({**finished.job.model_dump(), "rewards": list(rewards), "max_failed_fraction": 1})


def run_over_the_api(job: RolloutJob) -> Any:
    """Run the job as a worker runs a deployment's flow run whose parameters came over the API; return its report."""
    deployment_id = rollout.to_deployment("from-the-api").apply()
    assert isinstance(deployment_id, UUID)
    created = run_deployment(deployment_id, parameters={"job": job.model_dump(mode="json")}, timeout=0)
    assert not asyncio.iscoroutine(created)
    return run_flow(rollout, flow_run=created, parameters={"job": job})


FUNCTION = {"type": "function", "path": "json:dumps_of_nothing"}


def test_code_that_the_worker_does_not_allow_is_not_run_for_the_api(finished: FinishedRun) -> None:
    with pytest.raises(JobError, match=r"rewards\[0\]\.path: json:dumps_of_nothing may not be run by jobs .* API"):
        run_over_the_api(with_rewards(finished, FUNCTION))


def test_code_that_the_worker_allows_is_looked_for(finished: FinishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMILL_ALLOWED_PACKAGES", "ours, json")
    with pytest.raises(JobError, match="dumps_of_nothing") as caught:
        run_over_the_api(with_rewards(finished, FUNCTION))
    assert "may not be run" not in str(caught.value)


def test_a_variable_that_the_worker_does_not_allow_is_not_sent_anywhere(
    finished: FinishedRun, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    job = with_rewards(finished, {"type": "http", "url": service.url, "api_key_env": VARIABLE})
    with pytest.raises(JobError, match=f"api_key_env: {VARIABLE} may not be used"):
        run_over_the_api(job)
    assert service.keys == []
    monkeypatch.setenv("ROLLMILL_ALLOWED_VARIABLES", VARIABLE)
    assert run_over_the_api(job).version == 2
    assert set(service.keys) == {f"Bearer {KEY}"}


def test_what_a_worker_started_is_checked_also_in_flows_that_call_this_one(
    finished: FinishedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    @flow
    def outer() -> Any:
        return rollout(with_rewards(finished, FUNCTION))

    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "00000000-0000-0000-0000-000000000000")
    with pytest.raises(JobError, match="may not be run"):
        outer()


def test_a_worker_is_not_sent_to_another_cluster(finished: FinishedRun) -> None:
    runner = RayRunner(type="ray", address="cluster-of-somebody:6379")
    with pytest.raises(JobError, match="may only say auto, got cluster-of-somebody:6379"):
        run_over_the_api(finished.job.model_copy(update={"runner": runner}))


def test_a_job_of_ones_own_may_name_any_code(finished: FinishedRun) -> None:
    with pytest.raises(JobError, match="dumps_of_nothing") as caught:
        rollout(with_rewards(finished, FUNCTION))
    assert "may not be run" not in str(caught.value)


@pytest.mark.parametrize("kept", ["environment", "secret block"])
def test_a_key_is_in_no_parameter_log_file_or_database(
    finished: FinishedRun,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kept: str,
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    Secret(value=KEY).save("reward-service-key", overwrite=True)
    named = {"api_key_env": VARIABLE} if kept == "environment" else {"api_key_secret": "reward-service-key"}
    job = with_rewards(finished, {"type": "http", "url": service.url, **named})
    state = rollout(job, return_state=True)
    assert state.state_details.flow_run_id is not None
    settle(state.state_details.flow_run_id)
    assert set(service.keys) == {f"Bearer {KEY}"}
    report = state.result()
    assert report.version == 2
    name = next(iter(named.values())).encode()
    database = b"".join(path.read_bytes() for path in database_files())
    stored = b"".join(path.read_bytes() for path in finished.folder.rglob("*") if path.is_file())
    rows = json.dumps(finished.store.latest().read().to_pylist())
    assert name in database
    assert name in stored
    assert "no, Bearer ***" in rows
    assert database.count(b"Finished in state Completed") >= 4
    printed = "".join(capfd.readouterr())
    for place in (database, stored, rows.encode(), printed.encode(), json.dumps(report.to_json()).encode()):
        assert KEY.encode() not in place
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(state.state_details.flow_run_id)
    assert KEY not in json.dumps(flow_run.model_dump(mode="json"))


def database_files() -> list[Path]:
    """Return the files of the session's Prefect database, with what it has not merged yet."""
    path = Path(str(PREFECT_SERVER_DATABASE_CONNECTION_URL.value()).partition(":///")[2])
    return sorted(path.parent.glob(f"{path.name}*"))


def test_a_secret_block_that_is_not_there_is_named_with_what_to_do() -> None:
    with pytest.raises(JobError, match="no Prefect Secret block named 'nowhere-to-be-found'; make one"):
        load_secret("nowhere-to-be-found")


def test_a_secret_is_read_also_where_an_event_loop_runs() -> None:
    Secret(value=KEY).save("loop-key", overwrite=True)

    async def read() -> str:
        return load_secret("loop-key")

    assert asyncio.run(read()) == KEY
