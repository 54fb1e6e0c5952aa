"""From a checked job to its stored plan."""

from __future__ import annotations

from contextlib import ExitStack

from rollmill.flows.job import RolloutJob
from rollmill.flows.preflight import CheckedJob
from rollmill.storage.plan import Plan
from rollmill.tasks.generation.policies import policy_fingerprint
from rollmill.tasks.planning import cut, identity_of
from rollmill.tasks.prompts.reading import read_prompts
from rollmill.tasks.prompts.spool import SpooledPrompts


def plan_run(checked: CheckedJob) -> tuple[Plan, SpooledPrompts]:
    """Read the prompts once, and open the run's plan; the prompts are the caller's to close.

    Raises PlanMismatchError, naming the fields, when another job already has this run id.
    """
    with ExitStack() as opened:
        prompts = opened.enter_context(SpooledPrompts(read_prompts(checked.job.prompts)))
        plan = checked.run.open_plan(wanted_plan(checked, prompts))
        opened.pop_all()
    return plan, prompts


def wanted_plan(checked: CheckedJob, prompts: SpooledPrompts) -> Plan:
    """Return the plan that this job would have if its run were new."""
    job = checked.job
    return Plan(
        run_id=checked.run.run_id,
        identity=identity_of(
            job.policy,
            policy_fingerprint(job.policy.model),
            job.prompts,
            prompts.fingerprint,
            checked.renderer.fingerprint,
            job.sampling,
            job.engine.backend,
        ),
        shards=cut(prompts.num_prompts, job.shards.prompts_per_shard),
        group_size=job.sampling.group_size,
        tuning=_tuning(job),
    )


def _tuning(job: RolloutJob) -> dict[str, object]:
    return {"engine": job.engine.model_dump(mode="json"), "runner": job.runner.model_dump(mode="json")}
