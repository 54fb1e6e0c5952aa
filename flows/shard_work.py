"""Running a run's missing shards: generate one while the last is scored, a bounded number at a time."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.task_runners import ThreadPoolTaskRunner

from rollmill.flows.batches import Pair, batched, gather, refuse_failures, shards_name
from rollmill.flows.engine_slots import engine_slots
from rollmill.flows.failures import FailedRewards
from rollmill.flows.gate import Gate
from rollmill.flows.job import RolloutJob
from rollmill.flows.preflight import CheckedJob
from rollmill.flows.progress import Progress
from rollmill.flows.publishing import publishing_as_it_goes
from rollmill.flows.task_runs import MAX_TASK_RUNS, RETRY_DELAYS, unvisited
from rollmill.storage.plan import Plan, ShardRange
from rollmill.tasks.generation.engine import Engines, start_engines, works_at_once
from rollmill.tasks.planning import ShardPrompts
from rollmill.tasks.rewards.stored import rewards_to_text
from rollmill.tasks.scoring import REWARDS, Scoring, failed_shards, score_shard, score_stage
from rollmill.tasks.shards import GENERATE_STAGE, Generation, ShardRef, generate_shard, reference

MAX_SHARDS_IN_FLIGHT = 64


@task(
    name="generate", task_run_name="{name}", retries=3, retry_delay_seconds=RETRY_DELAYS,
    cache_policy=NO_CACHE, persist_result=False,
)  # fmt: skip
def generate_task(
    name: str,  # noqa: ARG001  (names the task run)
    work: Generation,
    shards: Sequence[ShardRange],
    progress: Progress,
    gate: Gate,
) -> list[ShardRef]:
    """Answer the prompts of shards, one after the other."""
    gate.check()
    done = []
    for shard in shards:
        done.append(generate_shard(work, shard, progress.add))
        progress.answered(shard.index)
    return done


@task(
    name="score", task_run_name="{name}", retries=3, retry_delay_seconds=RETRY_DELAYS,
    cache_policy=NO_CACHE, persist_result=False,
)  # fmt: skip
def score_task(
    name: str,  # noqa: ARG001  (names the task run)
    work: Scoring,
    shards: Sequence[ShardRange],
    failed: FailedRewards,
    progress: Progress,
) -> list[ShardRef]:
    """Score the stored answers of shards, one after the other, unless too many could not be scored."""
    done = []
    for shard in shards:
        failed.check()
        done.append(score_shard(work, shard.index))
        failed.add(shard.index, done[-1].stats)
        progress.scored(shard.index, done[-1].num_rows)
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingWork:
    """The shards that are not finished, and what is there already.

    A shard with rewards that failed is not finished; `again` has the generation of each of these.
    """

    finished: tuple[ShardRef, ...]
    to_generate: frozenset[int]
    again: Mapping[int, int]
    batches: tuple[tuple[ShardRange, ...], ...]
    total_rows: int
    rows_before: int

    def lacks_answers(self, batch: Sequence[ShardRange]) -> bool:
        """Say whether any shard of a batch has yet to be generated."""
        return any(shard.index in self.to_generate for shard in batch)


def remaining_work(
    checked: CheckedJob, plan: Plan, only: Collection[int] | None = None, settled: Collection[int] = ()
) -> RemainingWork:
    """Ask the store which shards of either stage are missing, and batch them so that task runs stay few.

    With `only`, the other shards are as if they were not in the plan. Those in `settled` were scored just now, and
    count as finished whatever failed.
    """
    shards = [shard for shard in plan.shards if only is None or shard.index in only]
    indexes = [shard.index for shard in shards]
    answered = checked.run.finished(GENERATE_STAGE, indexes)
    stage = score_stage(checked.scorer)
    scored = checked.run.finished(stage, indexes)
    again = {index: generation for index, generation in failed_shards(scored).items() if index not in settled}
    finished = {index: marker for index, marker in scored.items() if index in answered and index not in again}
    missing = [shard for shard in shards if shard.index not in finished]
    return RemainingWork(
        finished=tuple(reference(stage, marker) for marker in finished.values()),
        to_generate=frozenset(indexes).difference(answered),
        again=again,
        batches=tuple(batched(missing, max_batches=most_batches(checked.job))),
        total_rows=sum(shard.num_prompts for shard in shards) * plan.group_size,
        rows_before=sum(marker.rows for marker in answered.values()),
    )


def most_batches(job: RolloutJob) -> int:
    """Return how many batches a run may have: each is generated, scored and perhaps published by a task of its own."""
    tasks_a_batch = 2 if job.publish.every_shards is None else 3
    return MAX_TASK_RUNS // tasks_a_batch - 2


def shards_in_flight(job: RolloutJob, num_engines: int) -> int:
    """Return how many shards are generated at once: enough that every engine's batch stays full, and one to follow."""
    rows_per_shard = job.shards.prompts_per_shard * job.sampling.group_size
    return min(num_engines * works_at_once(job.engine.max_batch_size, rows_per_shard), MAX_SHARDS_IN_FLIGHT)


def make_shards(
    checked: CheckedJob, plan: Plan, prompts: ShardPrompts, work: RemainingWork, progress: Progress
) -> list[ShardRef]:
    """Generate and score what is missing, and return all shards in order.

    The next shards are generated while the last are scored. Other shards finish before a failure is raised: an
    InputError as it is, anything else as RunFailedError; so are too many rewards that failed, as soon as they are.
    """
    gate = Gate()
    failed = failed_rewards(checked, plan, work, gate)
    job = checked.job
    engines = start_engines(job.policy, job.engine, job.runner, on_log=_log_of_this_run())
    threads = ThreadPoolTaskRunner[list[ShardRef]](max_workers=2 * shards_in_flight(job, engines.num_engines))
    slots = engine_slots(job.engine.concurrency_limit if work.to_generate else None, engines.num_engines)
    already = [shard.index for shard in work.finished]
    with slots, threads, engines, publishing_as_it_goes(checked, plan, already, failed, gate) as publish:
        generation = _generation(checked, plan, prompts, engines)
        try:
            outcome = gather(_submit(checked, generation, work, progress, gate, failed, threads), gate, publish)
        except BaseException:
            gate.close()
            raise
    failed.check()
    refuse_failures(outcome, plan.run_id)
    return sorted([*work.finished, *outcome.finished], key=lambda shard: shard.index)


def _log_of_this_run() -> Callable[[int, str], None]:
    """Return the flow run's log for threads that Prefect did not start: they lack the settings that name its server."""
    log, context = get_run_logger().log, contextvars.copy_context()
    return lambda level, text: context.copy().run(log, level, text)


def _submit(
    checked: CheckedJob,
    generation: Generation,
    work: RemainingWork,
    progress: Progress,
    gate: Gate,
    failed: FailedRewards,
    threads: ThreadPoolTaskRunner[list[ShardRef]],
) -> list[Pair]:
    """Submit every batch: generate, then score. Threads take them in order, so a batch is scored before many others
    begin, and half of the threads suffice to keep the engines busy while the other half score or wait to."""
    scoring = _scoring(checked, work)
    generate = generate_task.with_options(retry_condition_fn=gate.may_retry)
    score = score_task.with_options(retry_condition_fn=gate.may_retry)
    pairs: list[Pair] = []
    for batch in work.batches:
        name = shards_name(batch)
        generated = None
        if work.lacks_answers(batch):
            parameters = {
                "name": name, "work": unvisited(generation), "shards": unvisited(batch),
                "progress": unvisited(progress), "gate": unvisited(gate),
            }  # fmt: skip
            generated = threads.submit(generate, parameters)
        parameters = {
            "name": f"{name}-score", "work": unvisited(scoring), "shards": unvisited(batch),
            "failed": unvisited(failed), "progress": unvisited(progress),
        }  # fmt: skip
        scored = threads.submit(score, parameters, wait_for=[generated] if generated else None)
        pairs.append((name, generated, scored))
    return pairs


def _generation(checked: CheckedJob, plan: Plan, prompts: ShardPrompts, engines: Engines) -> Generation:
    return Generation(
        run=checked.run,
        policy=checked.job.policy,
        sampling=checked.job.sampling,
        tokenizer=checked.tokenizer,
        renderer=checked.renderer,
        prompts=prompts,
        engines=engines,
        identity=plan.identity,
    )


def _scoring(checked: CheckedJob, work: RemainingWork) -> Scoring:
    return Scoring(
        run=checked.run,
        scorer=checked.scorer,
        stage=score_stage(checked.scorer),
        marks={REWARDS: rewards_to_text(checked.job.rewards)},
        again=work.again,
    )


def failed_rewards(checked: CheckedJob, plan: Plan, work: RemainingWork, gate: Gate) -> FailedRewards:
    """Return what counts the run's failed rewards, with those of the shards that are finished."""
    failed = FailedRewards(
        f"run {plan.run_id}",
        max_fraction=checked.job.max_failed_fraction,
        total_rows=plan.num_prompts * plan.group_size,
        gate=gate,
        remedy="When the cause is gone, the same command computes only these again; --set max_failed_fraction=1 "
        "publishes the run without them",
    )
    for shard in work.finished:
        failed.add(shard.index, shard.stats)
    return failed
