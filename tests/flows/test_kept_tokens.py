"""The further columns of a job, from its file to a trainer's loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flow_builders import job_of
from generated_builders import logits_of

from rollmill.errors import InputError
from rollmill.flows.rollout import rollout
from rollmill.storage.cached_runner import CachedRolloutRunner
from rollmill.storage.store import RolloutStore

TEMPERATURE = 0.7
FURTHER = ("kept_token_ids", "full_logprobs")


@pytest.fixture(scope="module")
def store(policy: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> RolloutStore:
    folder = tmp_path_factory.mktemp("kept")
    job = job_of(
        policy, prompts, str(folder / "store"),
        sampling={"group_size": 4, "max_tokens": 12, "seed": 5, "temperature": TEMPERATURE, "top_p": 0.8,
                  "kept_token_ids": True, "full_logprobs": True},
    )  # fmt: skip
    rollout(job)
    return RolloutStore(str(folder / "store"))


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_importance_ratio_of_unchanged_weights_is_one_over_the_kept_set(store: RolloutStore, side: str) -> None:
    runner = CachedRolloutRunner(store, prompts_per_batch=3, further_columns=FURTHER, response_side=side)
    for _ in range(3):
        result, _ = runner()
        assert result.kept_tokens is not None
        logits = logits_of(result) / TEMPERATURE
        chosen = logits.gather(-1, result.responses[..., None])[..., 0]
        logprobs = chosen - result.kept_tokens.log_normaliser(logits)
        ratio = (logprobs - result.logprobs_old).exp()[result.response_mask]
        torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-3, rtol=0)


def test_without_the_kept_set_the_ratio_is_off(store: RolloutStore) -> None:
    result = store.latest().result(further_columns=FURTHER)
    logits = logits_of(result) / TEMPERATURE
    logprobs = logits.log_softmax(-1).gather(-1, result.responses[..., None])[..., 0]
    ratio = (logprobs - result.logprobs_old).exp()[result.response_mask]
    assert ratio.max() < 0.99
    assert ratio.mean() == pytest.approx(0.8, abs=0.05)  # what top_p leaves


def test_full_logprobs_are_those_of_the_plain_model(store: RolloutStore) -> None:
    result = store.latest().result(further_columns=["full_logprobs"])
    expected = logits_of(result).log_softmax(-1).gather(-1, result.responses[..., None])[..., 0]
    assert result.full_logprobs is not None
    mask = result.response_mask
    torch.testing.assert_close(result.full_logprobs[mask], expected[mask], atol=1e-4, rtol=1e-4)


def test_a_column_that_no_job_stored_is_refused_by_name(unbroken: Any) -> None:
    with pytest.raises(InputError, match=r"kept_token_ids.*sampling\.kept_token_ids: true"):
        unbroken.store.latest().result(further_columns=["kept_token_ids"])
    with pytest.raises(InputError, match=r"sampling\.kept_token_ids: true"):
        CachedRolloutRunner(unbroken.store, further_columns=["kept_token_ids"])()


def test_gradients_flow_through_the_normaliser(store: RolloutStore) -> None:
    result = store.latest().result(further_columns=["kept_token_ids"])
    assert result.kept_tokens is not None
    logits = logits_of(result).requires_grad_()
    result.kept_tokens.log_normaliser(logits).sum().backward()
    assert logits.grad is not None
    total = logits.grad.sum(-1)
    torch.testing.assert_close(total, result.response_mask.float(), atol=1e-5, rtol=0)
