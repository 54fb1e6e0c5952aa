"""The same promises on a GPU: its answers, their log-probabilities, and a whole job."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from builders import FAMILIES, byte_tokenizer, save_policy, tiny_model
from flow_builders import job_of, write_prompts

from rollmill.flows.rollout import rollout
from rollmill.storage.store import RolloutStore
from rollmill.tasks.auditing import audit_version
from rollmill.tasks.generation.audit import StoredAnswer, audit
from rollmill.tasks.generation.policies import load_policy
from rollmill.tasks.generation.scheduler import InferenceScheduler
from rollmill.tasks.generation.types import SamplingParams

PROMPTS = [[1, 2, 3], list(range(40)), [7] * 17, [9]]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate(family: str) -> None:
    model = tiny_model(family).cuda()
    scheduler = InferenceScheduler(model, byte_tokenizer(), max_batch_size=3, max_seq_len=256)
    for prompt, completion in zip(PROMPTS, scheduler.run_batch(PROMPTS, max_tokens=32, temperature=0.0), strict=True):
        ids = torch.tensor([prompt], device="cuda")
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False)
        assert completion.token_ids == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 20, "frequency_penalty": 0.5}])
def test_log_probabilities_of_the_demo_policy_agree_with_a_recompute(dtype: str, settings: dict[str, float]) -> None:
    model, tokenizer = load_policy("smollm2-135m", dtype=dtype, device="cuda")
    prompts = [tokenizer.encode(f"The sum of {number} and 3 is") for number in range(8)]
    asked = [prompt for prompt in prompts for _ in range(8)]
    completions = InferenceScheduler(model, tokenizer).run_batch(
        asked, max_tokens=64, seeds=list(range(64)), **settings
    )
    answers = [
        StoredAnswer(name=str(place), prompt_token_ids=prompt, response_token_ids=c.token_ids, logprobs=c.logprobs)
        for place, (prompt, c) in enumerate(zip(asked, completions, strict=True))
    ]
    found = audit(model, answers, SamplingParams(**settings))
    assert found.mean_difference < (1e-4 if dtype == "float32" else 0.03)
    assert found.effective_sample_share > 0.99


def test_equal_seeds_give_equal_answers() -> None:
    scheduler = InferenceScheduler(tiny_model().cuda(), byte_tokenizer(), max_batch_size=4)
    first, second = (scheduler.run_batch(PROMPTS, max_tokens=32, seeds=[1, 2, 3, 4]) for _ in range(2))
    assert first == second


def test_a_job_takes_the_gpu_by_itself_and_passes_its_audit(tmp_path: Path) -> None:
    job = job_of(
        save_policy(tmp_path / "policy"), write_prompts(tmp_path / "prompts.jsonl"), str(tmp_path / "store"),
        engine__devices="auto",
    )  # fmt: skip
    rollout(job)
    version = RolloutStore(job.store).latest()
    assert version.num_rows == 32
    assert audit_version(version, device="cuda").is_sound
