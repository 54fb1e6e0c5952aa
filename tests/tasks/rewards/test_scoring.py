"""A scorer fills the reward columns of stored rows and the rewards of rollouts, and nothing else."""

from collections.abc import Callable

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reward_builders import scorer_of
from store_builders import parts_of

from rollmill.errors import JobError, RewardError
from rollmill.storage.results import RawRollout, RolloutResult
from rollmill.storage.schema import RESPONSE_SCHEMA
from rollmill.tasks.rewards.base import BaseRewardModel
from rollmill.tasks.rewards.config_rules import LastNumberConfig, LengthConfig
from rollmill.tasks.rewards.scoring import Scorer, build_rewards

MakeTable = Callable[..., pa.Table]
MakeScorer = Callable[..., Scorer]
REWARD_COLUMNS = ["reward", "reward_status", "reward_error", "reward_parts"]


def test_a_table_keeps_its_rows_and_gets_its_four_reward_columns(response_table: MakeTable, scorer: MakeScorer) -> None:
    table = response_table([["4", None, "five"], ["5", "4", None]], [{"answer": 4}, {"answer": None}])
    scored = scorer({"type": "last_number"}, {"type": "length", "max": 1, "weight": 0.5, "name": "short"}).score_table(
        table
    )
    assert scored.schema == RESPONSE_SCHEMA
    assert scored.drop_columns(REWARD_COLUMNS) == table.drop_columns(REWARD_COLUMNS)
    assert scored["reward"].to_pylist() == [1.5, None, 0.0, None, None, None]
    assert scored["reward_status"].to_pylist() == ["ok", "skipped", "ok", "failed", "failed", "skipped"]
    assert [error and error[:31] for error in scored["reward_error"].to_pylist()] == [
        None, None, None, "last_number: this prompt has no", "last_number: this prompt has no", None,
    ]  # fmt: skip
    assert [row and parts_of(row) for row in scored["reward_parts"].to_pylist()] == [
        {"last_number": 1.0, "short": 1.0},
        None,
        {"last_number": 0.0, "short": 0.0},
        {"short": 1.0},
        {"short": 1.0},
        None,
    ]


def test_scoring_again_gives_the_same_whatever_was_there(response_table: MakeTable, scorer: MakeScorer) -> None:
    job = scorer({"type": "contains"})
    scored = job.score_table(response_table([["ab", "c"]], [{"answer": "b"}]))
    assert job.score_table(scored) == scored


def test_an_empty_shard_and_one_without_any_answer_are_fine(response_table: MakeTable, scorer: MakeScorer) -> None:
    job = scorer({"type": "last_number"})
    empty = job.score_table(response_table([]))
    assert (empty.num_rows, empty.schema) == (0, RESPONSE_SCHEMA)
    assert job.score_table(response_table([[None, None]]))["reward_status"].to_pylist() == ["skipped", "skipped"]


@given(st.lists(st.lists(st.sampled_from(["1", "2", None]), min_size=1, max_size=4), max_size=5))
def test_shards_scored_apart_are_the_shard_scored_whole(
    response_table: MakeTable, scorer: MakeScorer, answers: list[list[str | None]]
) -> None:
    job = scorer({"type": "exact_match"})
    table = response_table(answers, [{"answer": str(b)} for b in range(len(answers))])
    parts = [job.score_table(table.slice(i, 1)) for i in range(table.num_rows)]
    assert job.score_table(table) == (pa.concat_tables(parts) if parts else table)


class LengthOver(BaseRewardModel):
    """Answer length over the prompt's divisor; a divisor of 0 raises."""

    def score(self, prompts: list[str], responses: list[list[str]], divisor: list[int]) -> torch.Tensor:
        return torch.tensor([[len(text) / d for text in group] for group, d in zip(responses, divisor, strict=True)])


def rollout(texts: list[list[str]], finish: list[list[str]], **columns: list[object]) -> RawRollout:
    b, g = len(texts), len(texts[0])
    lengths = torch.tensor([[len(text) for text in group] for group in texts])
    mask = torch.arange(int(lengths.max())) < lengths[..., None]
    return RawRollout(
        prompts=torch.ones(b, 1, dtype=torch.int64),
        prompt_mask=torch.ones(b, 1, dtype=torch.bool),
        responses=torch.full((b, g, mask.shape[-1]), 7),
        response_mask=mask,
        logprobs_old=torch.zeros(mask.shape),
        prompt_texts=[f"p{i}" for i in range(b)],
        response_texts=texts,
        prompt_ids=[str(i) for i in range(b)],
        finish_reasons=finish,
        columns=columns,
    )


def test_a_rollout_gets_rewards_and_nan_where_scoring_failed_or_there_was_no_answer() -> None:
    raw = rollout([["ab", "abcd"], ["abcd", ""]], [["stop", "length"], ["stop", "error"]], divisor=[2, 4])
    result = scorer_of(LengthOver()).score_rollout(raw)
    assert isinstance(result, RolloutResult)
    assert result.rewards.dtype == torch.float32
    torch.testing.assert_close(result.rewards, torch.tensor([[1.0, 2.0], [1.0, torch.nan]]), equal_nan=True)
    assert torch.equal(result.responses, raw.responses)
    failed = rollout([["ab", "abcd"], ["abcd", "x"]], [["stop"] * 2] * 2, divisor=[0, 4])
    assert scorer_of(LengthOver()).score_rollout(failed).rewards.isnan().tolist() == [[True, True], [False, False]]


def test_a_rollout_is_scored_as_its_rows_would_be(response_table: MakeTable, scorer: MakeScorer) -> None:
    job = scorer({"type": "last_number"}, {"type": "length", "target": 3, "weight": 2.0})
    texts = [["12", "ab3"], ["4", "5 is"]]
    raw = rollout(texts, [["stop"] * 2] * 2, answer=[12, 5])
    table = response_table(texts, [{"answer": 12}, {"answer": 5}])
    assert job.score_rollout(raw).rewards.flatten().tolist() == pytest.approx(
        job.score_table(table)["reward"].to_pylist()
    )


def test_a_rollout_whose_columns_do_not_fit_is_refused() -> None:
    with pytest.raises(RewardError, match="divisor has 1 values for 2 prompts"):
        scorer_of(LengthOver()).score_rollout(rollout([["a"], ["b"]], [["stop"]] * 2, divisor=[1]))


def test_missing_columns_are_found_before_anything_is_generated(scorer: MakeScorer) -> None:
    job = scorer(
        {"type": "length", "max": 3}, {"type": "last_number", "answer_column": "label"}, {"type": "reasoning_gym"}
    )
    with pytest.raises(JobError, match=r"^rewards\[1\] \(last_number\) needs the column label; the prompts have a, b$"):
        job.check(["a", "b"])
    with pytest.raises(JobError, match=r"rewards\[2\].*column reasoning_gym"):
        job.check(["label"])
    job.check(["label", "reasoning_gym"])
    scorer({"type": "regex", "pattern": "a"}).check([])
    with pytest.raises(JobError, match="no other columns"):
        scorer({"type": "regex", "pattern": "(a)", "group": 1}).check([])


def test_a_fingerprint_changes_with_the_configuration_and_with_nothing_else() -> None:
    last, length = LastNumberConfig(type="last_number"), LengthConfig(type="length", max=3)
    first = build_rewards([last, length]).fingerprint
    assert len(first) == 12
    assert build_rewards([LastNumberConfig(type="last_number", weight=1.0), length]).fingerprint == first
    others = [
        [last],
        [length, last],
        [last, LengthConfig(type="length", max=4)],
        [last.model_copy(update={"weight": 2.0}), length],
    ]
    assert len({first, *(build_rewards(configs).fingerprint for configs in others)}) == 5


def test_two_parts_of_one_name_are_refused() -> None:
    with pytest.raises(JobError, match="two rewards are named 'last_number'"):
        build_rewards([LastNumberConfig(type="last_number")] * 2)
