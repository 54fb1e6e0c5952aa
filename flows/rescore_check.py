"""What a rescoring needs, found and checked before anything is scored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollmill.errors import CorruptDataError, JobError
from rollmill.flows.api_jobs import check_origin
from rollmill.flows.api_keys import load_secret
from rollmill.flows.preflight import decoder
from rollmill.flows.rescore_job import RescoreJob
from rollmill.storage.parquet import read_committed
from rollmill.storage.plan import Plan
from rollmill.storage.runs import RunStore
from rollmill.storage.store import RolloutStore
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.rewards.config import GateConfig, MinConfig, RewardConfig, SumConfig
from rollmill.tasks.rewards.scoring import Scorer, build_rewards
from rollmill.tasks.rewards.service import LoadSecret
from rollmill.tasks.rewards.stored import rewards_from_text, rewards_to_text
from rollmill.tasks.scoring import OTHER_REWARDS, RESCORED_FROM, RESCORED_WHERE, REWARDS, Scoring


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRescore:
    """A rescoring whose parts were found to be there and to fit, and these parts."""

    job: RescoreJob
    version: DatasetVersion
    plan: Plan
    work: Scoring


def check_rescore(job: RescoreJob, secrets: LoadSecret = load_secret) -> CheckedRescore:
    """Check the store, the version and the rewards. No weights of the policy are loaded; its tokenizer is, where a
    reward sees special tokens.

    Raises an InputError of one line for the first thing that is wrong.
    """
    check_origin(job.rewards or ())
    store = RolloutStore(job.store, job.storage_options)
    store.objects.check_access()
    version = store.latest() if job.version is None else store.version(job.version)
    run = RunStore(store.objects.patient(), version.run_id)
    plan = run.load_plan()
    if plan is None:
        raise CorruptDataError(f"run {version.run_id} of {store.url} has no plan; rollmill verify says what is missing")
    said, columns = _first_file(version)
    rewards = job.rewards if job.rewards is not None else _stored_rewards(said, version)
    check_origin(rewards)
    scorer = _build(rewards, plan, secrets)
    scorer.check(columns)
    return CheckedRescore(
        job=job,
        version=version,
        plan=plan,
        work=Scoring(
            run=run,
            scorer=scorer,
            stage=_stage(job, version, scorer),
            marks=_marks(job, version, rewards, said),
            files={file.shard: file for file in version.files},
            where=job.condition,
        ),
    )


def _stage(job: RescoreJob, version: DatasetVersion, scorer: Scorer) -> str:
    """Return a stage that this rescoring alone has, so that one that was killed goes on where it stopped."""
    text = json.dumps([scorer.fingerprint, job.condition.text if job.condition else None])
    return f"rescore-{version.number}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _marks(
    job: RescoreJob, version: DatasetVersion, rewards: Sequence[RewardConfig], said: dict[str, str]
) -> dict[str, str]:
    marks = {REWARDS: rewards_to_text(rewards), RESCORED_FROM: str(version.number)}
    if job.condition is None:
        return marks
    marks[RESCORED_WHERE] = job.condition.text
    before = said.get(OTHER_REWARDS) or said.get(REWARDS, "[]")
    return marks if before == marks[REWARDS] else {**marks, OTHER_REWARDS: before}


def _stored_rewards(said: dict[str, str], version: DatasetVersion) -> list[RewardConfig]:
    where = f"version {version.number} of {version.objects.url}"
    if REWARDS not in said:
        raise JobError(f"{where} does not say which rewards it was scored by; name them")
    if OTHER_REWARDS in said:
        raise JobError(f"{where} holds rows that were scored by different rewards; name those to score by")
    return rewards_from_text(said[REWARDS], where)


def _build(rewards: Sequence[RewardConfig], plan: Plan, secrets: LoadSecret) -> Scorer:
    model = plan.identity.get("policy", {}).get("model")
    if not isinstance(model, str):
        return build_rewards(rewards, load_secret=secrets)
    decode = decoder(model)
    if _sees_special_tokens(rewards):
        decode([])
    return build_rewards(rewards, decode=decode, load_secret=secrets)


def _sees_special_tokens(rewards: Sequence[RewardConfig]) -> bool:
    for reward in rewards:
        inner: list[Any] = []
        if isinstance(reward, (SumConfig, MinConfig, GateConfig)):
            inner += reward.rewards
        if isinstance(reward, GateConfig):
            inner.append(reward.condition)
        if reward.view == "special_tokens" or _sees_special_tokens(inner):
            return True
    return False


def _first_file(version: DatasetVersion) -> tuple[dict[str, str], list[str]]:
    """Return what the version's first file says of itself, and the columns that its prompts have."""
    rows = read_committed(version.objects, version.files[0], ["metadata"])
    said = {name.decode(): value.decode() for name, value in (rows.schema.metadata or {}).items()}
    names = (name for text in rows["metadata"].unique().to_pylist() for name in json.loads(text))
    return said, list(dict.fromkeys(names))
