"""The in-process runner: what is generated, what is replayed, and when."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from builders import byte_tokenizer, tiny_model
from torch import Tensor, nn
from torch.utils.data import DataLoader

from rollmill import RolloutRunner
from rollmill.errors import InputError, JobError, RewardError
from rollmill.tasks.generation.generator import RolloutGenerator
from rollmill.tasks.generation.scheduler import InferenceScheduler
from rollmill.tasks.rewards.base import BaseRewardModel
from rollmill.tasks.rewards.length import Length as LengthRule

TOKENIZER = byte_tokenizer()


class Counting(BaseRewardModel):
    """Scores an answer by its length, and counts how often it was asked."""

    calls = 0

    def score(self, prompts: list[str], responses: list[list[str]], *_: Any, **columns: Any) -> Tensor:
        self.calls += 1
        return torch.tensor([[float(len(text)) for text in group] for group in responses])


def runner(reward: BaseRewardModel | None = None, model: nn.Module | None = None, **options: Any) -> RolloutRunner:
    scheduler = InferenceScheduler(model or tiny_model(), TOKENIZER, max_batch_size=8, max_seq_len=64)
    generator = RolloutGenerator(scheduler, TOKENIZER, max_tokens=4, group_size=2)
    return RolloutRunner(generator, reward or Counting(), **options)


def batches(number: int) -> list[dict[str, list[str]]]:
    return [{"prompt": [f"question {index}", "and another"], "answer": ["x", "y"]} for index in range(number)]


def test_a_cycling_dataloader_is_generated_once_an_interval_and_goes_stale_together() -> None:
    reward = Counting()
    run = runner(reward, rollout_interval=7)
    loader = DataLoader([{"prompt": f"question {index}", "answer": str(index)} for index in range(6)], batch_size=2)
    freshness, results = [], []
    for _ in range(5):
        for batch in loader:
            result, is_fresh = run(batch)
            freshness.append(is_fresh)
            results.append(result)
            run.step()
    assert freshness == [*[True] * 3, *[False] * 4, *[True] * 3, *[False] * 4, True]
    assert reward.calls == 7
    assert results[0] is results[3] is results[6]
    assert results[7] is not results[1]
    assert not torch.equal(results[1].responses, results[7].responses)  # no seed: other answers


def test_several_calls_before_a_step_are_one_interval() -> None:
    run = runner(rollout_interval=1)
    (batch,) = batches(1)
    assert [run(batch)[1], run(batch)[1]] == [True, False]
    run.step()
    assert run(batch)[1]


def test_batches_with_the_same_prompts_but_other_columns_are_different() -> None:
    run = runner()
    assert run({"prompt": ["q"], "answer": ["1"]})[1]
    assert run({"prompt": ["q"], "answer": ["2"]})[1]
    assert not run({"prompt": ["q"], "answer": ["1"]})[1]


def test_clearing_the_cache_makes_every_batch_anew() -> None:
    run = runner()
    (batch,) = batches(1)
    run(batch)
    run.clear_cache()
    assert run.num_cache_bytes == 0
    assert run(batch)[1]


def test_the_cache_is_bounded_and_says_when_it_is_full(caplog: pytest.LogCaptureFixture) -> None:
    run = runner()
    run(batches(1)[0])
    one = run.num_cache_bytes
    small = runner(max_cache_bytes=int(one * 2.5))
    with caplog.at_level(logging.WARNING):
        for batch in batches(6):
            small(batch)
    assert 0 < small.num_cache_bytes <= one * 2.5
    assert "take more than max_cache_bytes" in caplog.text
    assert small(batches(6)[0])[1]
    assert not small(batches(6)[5])[1]


def test_the_interval_goes_on_where_the_state_was_saved() -> None:
    first = runner(rollout_interval=4)
    for _ in range(3):
        first(batches(1)[0])
        first.step()
    second = runner(rollout_interval=4)
    second.load_state_dict(first.state_dict())
    freshness = []
    for _ in range(5):
        freshness.append(second(batches(1)[0])[1])
        second.step()
    assert freshness == [True, True, False, False, False]  # rollouts are not saved; the interval ends where it would


@pytest.mark.parametrize("training", [True, False])
def test_the_models_mode_is_as_before_even_when_the_reward_fails(training: bool) -> None:
    model = tiny_model().train(training)
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    runner(model=model)(batches(1)[0])
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(RewardError):
        runner(_Returns(torch.zeros(1)), model)(batches(1)[0])
    assert [module.training for module in model.modules()] == modes


class _Returns(BaseRewardModel):
    def __init__(self, scores: Any) -> None:
        self.scores = scores

    def score(self, prompts: list[str], responses: list[list[str]], *_: Any, **columns: Any) -> Tensor:
        return self.scores  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (torch.zeros(2), r"_Returns: score returned shape \(2,\), expected \(2, 2\)"),
        (torch.zeros(2, 3), r"shape \(2, 3\)"),
        (torch.tensor([[0.0, float("nan")], [0.0, 0.0]]), "returned nan, not a finite number"),
        (torch.tensor([[0.0, 1.0], [float("inf"), 0.0]]), "returned inf, not a finite number"),
        ("good", "returned str, not a tensor"),
    ],
)
def test_scores_of_a_wrong_shape_or_that_are_not_finite_are_refused(scores: Any, message: str) -> None:
    run = runner(_Returns(scores))
    with pytest.raises(RewardError, match=message):
        run(batches(1)[0])
    assert run.num_cache_bytes == 0


class _FailsFor(BaseRewardModel):
    def __init__(self, bad: str) -> None:
        self.bad = bad

    def score(self, prompts: list[str], responses: list[list[str]], *_: Any, **columns: Any) -> Tensor:
        if any(self.bad in prompt for prompt in prompts):
            raise RuntimeError("cannot judge this")
        return torch.ones(len(prompts), len(responses[0]))


def test_an_answer_that_cannot_be_scored_is_nan_and_costs_no_other() -> None:
    result, _ = runner(_FailsFor("another"))(batches(1)[0])
    assert result.rewards[0].tolist() == [1.0, 1.0]
    assert result.rewards[1].isnan().all()


def test_a_reward_that_fails_everywhere_is_an_error_that_says_why() -> None:
    with pytest.raises(RewardError, match="failed for all 4 answers: RuntimeError: cannot judge this"):
        runner(_FailsFor(""))(batches(1)[0])


class _NeedsTruth(BaseRewardModel):
    def score(self, prompts: list[str], responses: list[list[str]], truth: list[str]) -> Tensor:  # type: ignore[override]
        return torch.tensor([[float(text == true) for text in group] for group, true in zip(responses, truth)])  # noqa: B905


def test_a_reward_that_lacks_a_column_is_refused_by_name() -> None:
    with pytest.raises(JobError, match="needs the column truth"):
        runner(_NeedsTruth())(batches(1)[0])


def test_a_prompt_that_cannot_be_answered_has_no_reward() -> None:
    result, _ = runner()({"input_ids": [[5, 6], [3] * 64]})
    assert result.finish_reasons[1] == ["error", "error"]
    assert result.rewards.isnan().tolist() == [[False, False], [True, True]]


def test_bundled_rewards_work_in_process() -> None:
    result, _ = runner(LengthRule(max=3))(batches(1)[0])
    assert torch.isfinite(result.rewards).all()


@pytest.mark.parametrize("options", [{"rollout_interval": 0}, {"max_cache_bytes": -1}])
def test_settings_out_of_bounds_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        runner(**options)
