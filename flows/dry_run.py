"""What a job would do, found out without loading weights and without writing to the store."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rollmill.flows.api_keys import load_secret_alone
from rollmill.flows.job import RolloutJob
from rollmill.flows.preflight import CheckedJob, check_job
from rollmill.flows.rejection_sampling_check import check_place
from rollmill.flows.rejection_sampling_job import RejectionSamplingJob
from rollmill.storage.plan import ShardRange
from rollmill.tasks.planning import cut
from rollmill.tasks.prompts.reading import read_prompts
from rollmill.tasks.prompts.rendering import RenderedPrompt
from rollmill.tasks.scoring import score_stage
from rollmill.tasks.shards import GENERATE_STAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The plan of a job in numbers, and one prompt as the policy would see it."""

    run_id: str
    store: str
    num_prompts: int
    num_unusable_prompts: int
    num_shards: int
    num_rows: int
    max_new_tokens: int
    num_shards_generated: int
    num_shards_scored: int
    prompt_id: str
    prompt_text: str
    num_prompt_tokens: int
    training_set: str | None

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return asdict(self)

    def to_text(self) -> str:
        """Return it for a terminal."""
        unusable = f", {self.num_unusable_prompts} of them unusable" if self.num_unusable_prompts else ""
        prompt = "\n".join(f"  {line}" for line in self.prompt_text.splitlines())
        training_set = "" if self.training_set is None else f"set      {self.training_set}\n"
        return (
            f"run      {self.run_id} in {self.store}\n"
            f"prompts  {self.num_prompts}{unusable}\n"
            f"shards   {self.num_shards}, of which {self.num_shards_generated} are generated and "
            f"{self.num_shards_scored} scored already\n"
            f"rows     {self.num_rows}, {self.max_new_tokens} new tokens at most\n"
            f"{training_set}\n"
            f"prompt {self.prompt_id}, {self.num_prompt_tokens} tokens\n{prompt}"
        )


def look_ahead(job: RolloutJob) -> Outlook:
    """Check a job and say what running it would do. Raises InputError as the run would."""
    training_set = _training_set(job) if isinstance(job, RejectionSamplingJob) else None
    checked = check_job(job, writes=False, secrets=load_secret_alone)
    return _outlook(checked, _look_through(checked), training_set)


@dataclass(frozen=True, slots=True)
class _Dataset:
    """What is said of a prompt dataset: how many prompts it has, how many are unusable, and the first that is not."""

    num_prompts: int
    num_unusable: int
    shown: RenderedPrompt


def _look_through(checked: CheckedJob) -> _Dataset:
    """Read the dataset to its end, and keep none of it."""
    num_prompts = num_unusable = 0
    shown: RenderedPrompt | None = None
    for prompt in read_prompts(checked.job.prompts):
        num_prompts += 1
        num_unusable += prompt.error is not None
        if shown is None or shown.error is not None:
            shown = checked.renderer.render(prompt)
    assert shown is not None  # a dataset without a usable prompt was refused
    return _Dataset(num_prompts, num_unusable, shown)


def _training_set(job: RejectionSamplingJob) -> str:
    of = "this run" if job.export.mode == "replace" else "all runs of this job"
    return f"{job.export.format} records of {of} in {check_place(job).url}"


def _outlook(checked: CheckedJob, prompts: _Dataset, training_set: str | None) -> Outlook:
    job = checked.job
    stored = checked.run.load_plan()
    shards = stored.shards if stored else cut(prompts.num_prompts, job.shards.prompts_per_shard)
    num_rows = prompts.num_prompts * job.sampling.group_size
    return Outlook(
        run_id=checked.run.run_id,
        store=checked.run.objects.url,
        num_prompts=prompts.num_prompts,
        num_unusable_prompts=prompts.num_unusable,
        num_shards=len(shards),
        num_rows=num_rows,
        max_new_tokens=num_rows * job.sampling.max_tokens,
        num_shards_generated=_num_finished(checked, GENERATE_STAGE, shards if stored else ()),
        num_shards_scored=_num_finished(checked, score_stage(checked.scorer), shards if stored else ()),
        prompt_id=prompts.shown.prompt_id,
        prompt_text=prompts.shown.text,
        num_prompt_tokens=len(prompts.shown.input_ids),
        training_set=training_set,
    )


def _num_finished(checked: CheckedJob, stage: str, shards: tuple[ShardRange, ...]) -> int:
    return len(checked.run.finished(stage, [shard.index for shard in shards]))
