"""Auditing the log-probabilities of a published dataset version with the policy that it names."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rollmill.errors import CorruptDataError, InputError
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.generation.audit import Audit, StoredAnswer, audit
from rollmill.tasks.generation.config import PolicyConfig, SamplingConfig
from rollmill.tasks.generation.policies import load_policy, policy_fingerprint
from rollmill.tasks.generation.types import FINISH_ERROR, LOGPROB_MODE_PROCESSED

_COLUMNS = ["prompt_id", "sample_index", "prompt_token_ids", "response_token_ids", "logprobs", "finish_reason"]

_TOLERANCES = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}
"""Rounding alone moves a log-probability by up to about this much, in nats; a wrong temperature moves most by more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAudit:
    """What an audit of one version found; `same_weights` compares the policy's fingerprint with the stored one."""

    version: int
    policy: str
    same_weights: bool
    tolerance: float
    result: Audit

    @property
    def is_sound(self) -> bool:
        """Say whether the stored log-probabilities are those of the policy, within the tolerance."""
        return self.result.is_within(self.tolerance)

    def __str__(self) -> str:
        found = self.result
        doubt = "" if self.same_weights else " (its weights are not those of the run)"
        verdict = "sound" if self.is_sound else f"above the tolerance of {self.tolerance:g}"
        return (
            f"version {self.version}, {found.num_answers} answers, {found.num_tokens} tokens recomputed with "
            f"{self.policy}{doubt}: difference at most {found.max_difference:.2g} "
            f"(in {found.worst or 'none'}), mean {found.mean_difference:.2g}; k3 KL {found.k3_kl:.2g}; effective "
            f"sample share {found.effective_sample_share:.4f}; {found.num_impossible} "
            f"impossible tokens: {verdict}"
        )


def audit_version(
    version: DatasetVersion,
    *,
    num_answers: int = 64,
    model: str | None = None,
    tolerance: float | None = None,
    device: str = "auto",
) -> VersionAudit:
    """Recompute `num_answers` answers of the version's newest run, chosen evenly at random but always the same ones.

    `model` stands in for the policy that the files name, which may have moved. The tolerance is in nats; unset takes
    one that rounding in the policy's number format stays below. Raises InputError when nothing can be audited.
    """
    table = version.read(_COLUMNS)
    policy, sampling, fingerprint = _origin(version, table)
    chosen = _choose(table, num_answers)
    if not chosen:
        raise InputError(f"version {version.number} of {version.objects.url} has no answers to audit")
    name = model or policy.model
    network, _ = load_policy(name, dtype=policy.dtype, device=device)
    dtype = str(network.dtype).removeprefix("torch.")
    return VersionAudit(
        version=version.number,
        policy=name,
        same_weights=policy_fingerprint(name) == fingerprint,
        tolerance=_TOLERANCES[dtype] if tolerance is None else tolerance,
        result=audit(network, chosen, sampling.params()),
    )


def _origin(version: DatasetVersion, table: pa.Table) -> tuple[PolicyConfig, SamplingConfig, str]:
    metadata: dict[bytes, bytes] = table.schema.metadata or {}
    mode = metadata.get(b"logprob_mode", b"").decode()
    if mode != LOGPROB_MODE_PROCESSED:
        raise InputError(f"version {version.number}: logprob_mode {mode or 'unknown'} cannot be audited")
    try:
        policy: dict[str, Any] = json.loads(metadata[b"policy"])
        sampling = json.loads(metadata[b"sampling"])
    except KeyError as error:
        raise CorruptDataError(
            f"version {version.number} of {version.objects.url}: its files do not name their policy and sampling"
        ) from error
    fingerprint = policy.pop("fingerprint")
    return PolicyConfig.model_validate(policy), SamplingConfig.model_validate(sampling), str(fingerprint)


def _choose(table: pa.Table, count: int) -> list[StoredAnswer]:
    reasons = table["finish_reason"].to_pylist()
    answered = [place for place, reason in enumerate(reasons) if reason != FINISH_ERROR]
    places = sorted(random.Random(0).sample(answered, min(count, len(answered))))
    return [
        StoredAnswer(
            name=f"prompt {row['prompt_id']}, sample {row['sample_index']}",
            prompt_token_ids=row["prompt_token_ids"],
            response_token_ids=row["response_token_ids"],
            logprobs=row["logprobs"],
        )
        for row in table.take(places).to_pylist()
    ]
