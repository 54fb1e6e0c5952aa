"""An audit passes what was sampled, and catches every common way to get log-probabilities wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders import byte_tokenizer, tiny_model

from rollmill.tasks.generation.audit import Audit, StoredAnswer, audit
from rollmill.tasks.generation.scheduler import InferenceScheduler
from rollmill.tasks.generation.types import SamplingParams

PROMPTS = [[5, 6, 7], [9] * 20, [1], [30, 31, 200, 4]]

SAMPLINGS = [
    SamplingParams(max_tokens=30),
    SamplingParams(max_tokens=30, temperature=0.6),
    SamplingParams(max_tokens=30, temperature=1.4, top_k=20, top_p=0.9),
    SamplingParams(max_tokens=30, frequency_penalty=1.0, rep_window=5),
    SamplingParams(max_tokens=30, temperature=0.0),
]


def sampled(sampling: SamplingParams, seed: int = 0) -> list[StoredAnswer]:
    scheduler = InferenceScheduler(tiny_model("llama", seed), byte_tokenizer(), max_seq_len=256)
    completions = scheduler.run_batch(
        PROMPTS,
        seeds=range(len(PROMPTS)),
        **{name: getattr(sampling, name) for name in SamplingParams.__dataclass_fields__},
    )
    return [
        StoredAnswer(
            name=f"prompt {place}",
            prompt_token_ids=prompt,
            response_token_ids=completion.token_ids,
            logprobs=completion.logprobs,
        )
        for place, (prompt, completion) in enumerate(zip(PROMPTS, completions, strict=True))
    ]


def audited(answers: list[StoredAnswer], sampling: SamplingParams, seed: int = 0) -> Audit:
    return audit(tiny_model("llama", seed), answers, sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_what_was_sampled_passes(sampling: SamplingParams) -> None:
    answers = sampled(sampling)
    result = audited(answers, sampling)
    assert result.is_within(1e-4)
    assert result.num_tokens == sum(len(answer.logprobs) for answer in answers)
    assert result.k3_kl == pytest.approx(0, abs=1e-6)
    assert result.effective_sample_share == pytest.approx(1, abs=1e-6)


def test_a_wrong_temperature_is_caught() -> None:
    result = audited(sampled(SamplingParams(max_tokens=30, temperature=0.7)), SamplingParams(temperature=1.0))
    assert not result.is_within(0.05)
    assert result.k3_kl > 0.01


def test_other_weights_are_caught() -> None:
    result = audited(sampled(SAMPLINGS[0]), SAMPLINGS[0], seed=1)
    assert not result.is_within(0.05)
    assert result.effective_sample_share < 0.5


def test_shifted_log_probabilities_are_caught_and_the_worst_answer_is_named() -> None:
    answers = sampled(SAMPLINGS[0])
    shifted = replace(answers[1], logprobs=[*answers[1].logprobs[1:], answers[1].logprobs[0]])
    result = audited([answers[0], shifted, *answers[2:]], SAMPLINGS[0])
    assert not result.is_within(0.05)
    assert result.worst == "prompt 1"


def test_a_token_outside_the_kept_set_is_impossible() -> None:
    narrow = SamplingParams(max_tokens=30, top_k=3)
    result = audited(sampled(SAMPLINGS[0]), narrow)
    assert result.num_impossible > 0
    assert not result.is_within(100.0)


def test_answers_without_tokens_are_no_evidence() -> None:
    empty = StoredAnswer(name="x", prompt_token_ids=[1], response_token_ids=[], logprobs=[])
    result = audited([empty], SAMPLINGS[0])
    assert (result.num_answers, result.num_tokens, result.max_difference) == (1, 0, 0.0)


def test_bfloat16_answers_drift_from_a_float32_recompute_by_a_bounded_amount() -> None:
    model = tiny_model("llama", dtype=torch.bfloat16)
    scheduler = InferenceScheduler(model, byte_tokenizer(), max_seq_len=256)
    completions = scheduler.run_batch(PROMPTS, max_tokens=30, seeds=[1, 2, 3, 4])
    answers = [
        StoredAnswer(name="", prompt_token_ids=p, response_token_ids=c.token_ids, logprobs=c.logprobs)
        for p, c in zip(PROMPTS, completions, strict=True)
    ]
    exact = audit(model.float(), answers, SamplingParams())
    assert 0 < exact.mean_difference < 0.1
    assert exact.k3_kl < 0.01
