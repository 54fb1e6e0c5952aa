"""What is refused before any weights load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from transformers import PreTrainedTokenizerBase

from rollmill.flows.api_jobs import check_cluster_origin, check_origin
from rollmill.flows.api_keys import load_secret
from rollmill.flows.fleet_check import check_fleet
from rollmill.flows.job import RolloutJob
from rollmill.flows.report_page import check_page
from rollmill.storage.objects import open_objects
from rollmill.storage.runs import RunStore
from rollmill.tasks.generation.backend import check_backend
from rollmill.tasks.generation.policies import check_policy, load_tokenizer
from rollmill.tasks.generation.runners import check_runner
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.reading import check_source, read_prompts
from rollmill.tasks.prompts.rendering import PromptRenderer
from rollmill.tasks.rewards.scoring import Scorer, build_rewards
from rollmill.tasks.rewards.service import LoadSecret
from rollmill.tasks.rewards.view import Decode

_PROMPTS_LOOKED_AT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedJob:
    """A job whose parts were found to be there and to fit, and these parts."""

    job: RolloutJob
    run: RunStore
    scorer: Scorer
    tokenizer: PreTrainedTokenizerBase
    renderer: PromptRenderer


def check_job(job: RolloutJob, *, writes: bool = True, secrets: LoadSecret = load_secret) -> CheckedJob:
    """Check the backend, store, rewards, prompts, policy and devices of a job, cheapest first, and load no weights.

    Without `writes` the store is left as it is. `secrets` reads API keys that are kept as Prefect Secret blocks.
    Raises an InputError of one line for the first thing that is wrong.
    """
    check_origin(job.rewards)
    check_cluster_origin(job.runner)
    check_fleet(job)
    check_backend(job.engine, job.sampling)
    objects = open_objects(job.store, job.storage_options)
    if writes:
        objects.check_access()
    scorer = build_rewards(job.rewards, decode=decoder(job.policy.model), load_secret=secrets)
    check_runner(job.runner, job.engine)
    check_page(job)
    check_source(job.prompts)
    scorer.check(_columns(job.prompts))
    check_policy(job.policy.model)
    tokenizer = load_tokenizer(job.policy.model)
    return CheckedJob(
        job=job,
        run=RunStore(objects.patient(), job.resolved_run_id),
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


def decoder(model: str) -> Decode:
    """Return what makes text with special tokens of a policy's token ids; its tokenizer is loaded when first used."""
    tokenizer = lru_cache(maxsize=1)(load_tokenizer)

    def decode(token_ids: Sequence[int]) -> str:
        return str(tokenizer(model).decode(list(token_ids), skip_special_tokens=False))

    return decode
