"""Running flows from a command."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import httpx
from prefect import Flow

from rollmill.errors import RunFailedError
from rollmill.flows.api_keys import secrets_of
from rollmill.flows.job import RolloutJob
from rollmill.flows.prefect_server import PrefectServer, prefect_server, settle
from rollmill.flows.preflight import check_job
from rollmill.flows.rejection_sampling import rejection_sampling
from rollmill.flows.rejection_sampling_check import check_rejection_sampling
from rollmill.flows.rejection_sampling_job import RejectionSamplingJob
from rollmill.flows.rejection_sampling_report import RejectionSamplingReport
from rollmill.flows.report import RunReport
from rollmill.flows.rescore import rescore
from rollmill.flows.rescore_check import check_rescore
from rollmill.flows.rescore_job import RescoreJob
from rollmill.flows.rescore_report import RescoreReport
from rollmill.flows.rollout import rollout

Report = TypeVar("Report")


def run_job(job: RolloutJob) -> RunReport:
    """Run `job` on the Prefect server that PREFECT_API_URL names, or else on one that ends with this call.

    Raises what the flow raises.
    """
    with prefect_server() as server:
        check_job(job, secrets=secrets_of(server))
        report = _run(rollout, job, server)
    assert report is not None
    return report


def run_rejection_sampling(job: RejectionSamplingJob) -> RejectionSamplingReport:
    """Run a job with its training set as `run_job` runs one without."""
    with prefect_server() as server:
        check_rejection_sampling(job, secrets=secrets_of(server))
        return _run(rejection_sampling, job, server)


def run_rescore(job: RescoreJob) -> RescoreReport:
    """Run a rescoring as `run_job` runs a job."""
    with prefect_server() as server:
        check_rescore(job, secrets_of(server))
        return _run(rescore, job, server)


def _run(flow: Flow[..., Report], job: Any, server: PrefectServer | None) -> Report:
    run: Callable[..., Any] = flow
    try:
        with nullcontext() if server is None else server.in_use():
            state = run(job, return_state=True)
            if server is not None:
                assert state.state_details.flow_run_id is not None
                settle(state.state_details.flow_run_id)
    except httpx.TransportError as error:
        raise RunFailedError(
            f"Prefect's server does not answer any more ({error}); finished shards are kept, and the same command goes "
            "on from there"
        ) from error
    report: Report = state.result()
    return report
