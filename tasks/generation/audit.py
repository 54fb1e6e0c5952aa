"""Recomputing stored log-probabilities by teacher forcing, to prove that they are what they claim to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rollmill.tasks.generation.sampling import RowSettings, processed_weights
from rollmill.tasks.generation.types import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """One stored row, as far as an audit needs it; `name` is said of the worst."""

    name: str
    prompt_token_ids: Sequence[int]
    response_token_ids: Sequence[int]
    logprobs: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """How stored log-probabilities compare with recomputed ones.

    With d = recomputed - stored of each token: largest and mean |d|; `k3_kl`, the mean of exp(d) - 1 - d, an unbiased
    estimate of KL(stored || recomputed) that is never negative (Schulman, "Approximating KL Divergence", 2020);
    `effective_sample_share`, (sum w)^2 / (n sum w^2) of the importance weights w = exp(d), 1 when all are equal. A
    token to which the recomputed distribution gives no probability counts in `num_impossible`, and in nothing else.
    """

    num_answers: int
    num_tokens: int
    num_impossible: int
    max_difference: float
    mean_difference: float
    k3_kl: float
    effective_sample_share: float
    worst: str

    def is_within(self, tolerance: float) -> bool:
        """Say whether every token is possible and no log-probability is further off than `tolerance`."""
        return self.num_impossible == 0 and self.max_difference <= tolerance


def audit(model: PreTrainedModel, answers: Sequence[StoredAnswer], sampling: SamplingParams) -> Audit:
    """Recompute each answer's log-probabilities with `model`, one answer at a time, and compare."""
    differences, worst, largest = [], "", -1.0
    for answer in answers:
        stored = torch.tensor(answer.logprobs, dtype=torch.float64)
        recomputed = recomputed_logprobs(model, answer.prompt_token_ids, answer.response_token_ids, sampling)
        difference = recomputed.double().cpu() - stored
        differences.append(difference)
        if len(difference) and difference.abs().max() > largest:
            largest, worst = float(difference.abs().max()), answer.name
    return _compare(torch.cat(differences) if differences else torch.zeros(0), len(answers), worst)


def recomputed_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], response: Sequence[int], sampling: SamplingParams
) -> Tensor:
    """Return the log-probability of each response token under the sampling distribution, (tokens,) float32.

    Minus infinity where the distribution gives a token no probability at all.
    """
    if not response:
        return torch.zeros(0)
    ids = torch.tensor([[*prompt, *response]], device=model.device)
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(response) + 1).logits[0, :-1].float()
        count = len(response)
        settings = RowSettings(
            temperature=torch.full((count,), sampling.temperature, device=model.device),
            top_k=torch.full((count,), sampling.top_k, device=model.device),
            top_p=torch.full((count,), sampling.top_p, device=model.device),
            penalty=torch.full((count,), sampling.frequency_penalty, device=model.device),
            max_top_k=sampling.top_k,
            any_greedy=sampling.temperature == 0,
            any_top_p=sampling.top_p < 1,
            any_penalty=bool(sampling.frequency_penalty and sampling.rep_window),
        )
        response_ids = ids[0, len(prompt) :]
        weights, _ = processed_weights(logits, settings, _recent(response_ids, sampling.rep_window))
        chosen = weights.gather(1, response_ids[:, None])[:, 0]
        return (chosen.double().log() - weights.sum(-1, dtype=torch.float64).log()).float()


def _recent(response: Tensor, window: int) -> Tensor:
    """Return the `window` tokens before each position, (tokens, window), -1 where there is none."""
    places = torch.arange(len(response), device=response.device)[:, None] - torch.arange(
        1, window + 1, device=response.device
    )
    return torch.where(places >= 0, response[places.clamp(min=0)], -1)


def _compare(difference: Tensor, num_answers: int, worst: str) -> Audit:
    possible = difference[torch.isfinite(difference)]
    count = max(len(possible), 1)
    weights = possible.exp()
    return Audit(
        num_answers=num_answers,
        num_tokens=len(difference),
        num_impossible=len(difference) - len(possible),
        max_difference=float(possible.abs().max()) if len(possible) else 0.0,
        mean_difference=float(possible.abs().sum()) / count,
        k3_kl=float((torch.expm1(possible) - possible).sum()) / count,
        effective_sample_share=float(weights.sum() ** 2 / (count * (weights**2).sum())) if len(possible) else math.nan,
        worst=worst,
    )
