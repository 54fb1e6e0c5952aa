"""What is refused before any weights load."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from transformers import PreTrainedTokenizerBase

from rollmill.flows.job import RolloutJob
from rollmill.storage.objects import open_objects
from rollmill.storage.runs import RunStore
from rollmill.tasks.generation.devices import engine_devices
from rollmill.tasks.generation.policies import check_policy, load_tokenizer
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.reading import check_source, read_prompts
from rollmill.tasks.prompts.rendering import PromptRenderer
from rollmill.tasks.rewards.scoring import Scorer, build_rewards

_PROMPTS_LOOKED_AT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedJob:
    """A job whose parts were found to be there and to fit, and these parts."""

    job: RolloutJob
    run: RunStore
    scorer: Scorer
    tokenizer: PreTrainedTokenizerBase
    renderer: PromptRenderer


def check_job(job: RolloutJob, *, writes: bool = True) -> CheckedJob:
    """Check the store, rewards, prompts, policy and devices of a job, cheapest first, and load no weights.

    Without `writes` the store is left as it is. Raises an InputError of one line for the first thing that is wrong.
    """
    objects = open_objects(job.store, job.storage_options)
    if writes:
        objects.check_access()
    scorer = build_rewards(job.rewards)
    engine_devices(job.engine.devices)
    check_source(job.prompts)
    scorer.check(_columns(job.prompts))
    check_policy(job.policy.model)
    tokenizer = load_tokenizer(job.policy.model)
    return CheckedJob(
        job=job,
        run=RunStore(objects, job.resolved_run_id),
        scorer=scorer,
        tokenizer=tokenizer,
        renderer=PromptRenderer(tokenizer, job.prompts),
    )


def _columns(prompts: PromptsConfig) -> list[str]:
    """Return the columns that the first usable prompts have, in the order in which they appear."""
    seen: dict[str, None] = {}
    for prompt in islice(read_prompts(prompts), _PROMPTS_LOOKED_AT):
        seen.update(dict.fromkeys(prompt.columns))
    return list(seen)
