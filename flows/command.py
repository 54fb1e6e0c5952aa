"""Running the rollout flow from a command."""

from __future__ import annotations

from rollmill.flows.api_keys import secrets_of
from rollmill.flows.job import RolloutJob
from rollmill.flows.prefect_server import prefect_server, settle
from rollmill.flows.preflight import check_job
from rollmill.flows.report import RunReport
from rollmill.flows.rollout import rollout


def run_job(job: RolloutJob) -> RunReport:
    """Run `job` on the Prefect server that PREFECT_API_URL names, or else on one that ends with this call.

    Raises what the flow raises.
    """
    with prefect_server() as server:
        check_job(job, secrets=secrets_of(server))
        if server is None:
            return rollout(job)
        with server.in_use():
            state = rollout(job, return_state=True)
            assert state.state_details.flow_run_id is not None
            settle(state.state_details.flow_run_id)
        result = state.result()
        assert isinstance(result, RunReport)
        return result
