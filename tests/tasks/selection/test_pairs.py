from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from selection_builders import answer, answers, pair_keys, rewarded, shuffled
from store_builders import table_of

from rollmill.errors import JobError
from rollmill.tasks.selection.pairs import PairRule, dpo_pairs

STRATEGIES = ["max_min", "max_random", "adjacent"]


@st.composite
def rules(draw: st.DrawFn) -> PairRule:
    return PairRule(
        strategy=draw(st.sampled_from(STRATEGIES)),
        min_margin=draw(st.sampled_from([0.0, 0.1, 0.5])),
        max_length_ratio=draw(st.sampled_from([None, 1.0, 1.5, 3.0])),
        seed=draw(st.integers(0, 3)),
    )


@given(answers(), rules(), st.data())
def test_a_pair_is_a_better_and_a_worse_answer_to_one_prompt_that_keep_to_the_rule(
    table: pa.Table, rule: PairRule, data: st.DataObject
) -> None:
    found = dpo_pairs(table, rule)
    rows = {(row["run_id"], row["prompt_id"], row["sample_index"]): row for row in table.to_pylist()}
    used = set()
    for pair in found.table.to_pylist():
        better, worse = (
            rows[pair["run_id"], pair["prompt_id"], pair[f"{side}_sample_index"]] for side in ("chosen", "rejected")
        )
        assert (better["reward"], worse["reward"]) == (pair["chosen_reward"], pair["rejected_reward"])
        assert better["reward"] > worse["reward"]
        assert better["reward"] - worse["reward"] >= rule.min_margin - 1e-9
        assert better["response_text"] != worse["response_text"]
        lengths = sorted(len(row["response_token_ids"]) for row in (better, worse))
        assert rule.max_length_ratio is None or lengths[1] <= rule.max_length_ratio * lengths[0]
        assert pair["chosen_num_tokens"] == len(better["response_token_ids"])
        used |= {id(better), id(worse)}
    assert found.num_kept == len(used)
    assert sorted(pair_keys(dpo_pairs(shuffled(data, table), rule).table)) == sorted(pair_keys(found.table))


@given(answers())
def test_max_min_pairs_the_greatest_reward_with_the_least(table: pa.Table) -> None:
    for pair in dpo_pairs(table).table.to_pylist():
        rewards = [
            row["reward"]
            for row in table.to_pylist()
            if (row["run_id"], row["prompt_id"]) == (pair["run_id"], pair["prompt_id"]) and row["reward"] is not None
        ]
        assert (pair["chosen_reward"], pair["rejected_reward"]) == (max(rewards), min(rewards))


def test_of_equal_rewards_the_first_sample_stands_for_them() -> None:
    found = dpo_pairs(rewarded([0.0, 1.0, 1.0, 0.0]))
    assert pair_keys(found.table) == [("run", "p0", 1, 0)]
    assert dict(found.dropped) == {"not_in_pair": 2}


def test_adjacent_pairs_go_down_the_order_of_rewards() -> None:
    found = dpo_pairs(rewarded([0.1, 1.0, 0.5, 0.5]), PairRule(strategy="adjacent"))
    assert sorted(pair_keys(found.table)) == [("run", "p0", 1, 2), ("run", "p0", 3, 0)]
    assert (found.num_kept, dict(found.dropped)) == (4, {})


def test_max_random_draws_any_worse_answer_and_another_seed_draws_another() -> None:
    table = rewarded([0.1, 1.0, 0.5, 0.3, 0.2, 1.0])
    drawn = [pair_keys(dpo_pairs(table, PairRule(strategy="max_random", seed=seed)).table) for seed in range(40)]
    assert {pairs[0][2] for pairs in drawn} == {1}
    assert {pairs[0][3] for pairs in drawn} == {0, 2, 3, 4}
    assert drawn[0] == pair_keys(dpo_pairs(table, PairRule(strategy="max_random", seed=0)).table)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"reward": 1.0}], "single_answer"),
        ([{"reward": 1.0}, {"reward": 1.0}], "tie"),
        ([{"reward": 1.0, "response_text": "a"}, {"reward": 0.0, "response_text": "a"}], "identical_texts"),
        ([{"reward": 0.5}, {"reward": 0.4}], "margin"),
        ([{"reward": 1.0, "tokens": 4}, {"reward": 0.0, "tokens": 1}], "length_ratio"),
        ([{"reward": 1.0, "tokens": 1}, {"reward": 0.0, "tokens": 4}], "length_ratio"),
        ([{"reward": None}, {"reward": None}], "not_scored"),
    ],
)
def test_why_there_is_no_pair_is_counted(strategy: Any, rows: list[dict[str, Any]], reason: str) -> None:
    table = table_of(answer(0, sample, **row) for sample, row in enumerate(rows))
    found = dpo_pairs(table, PairRule(strategy=strategy, min_margin=0.2, max_length_ratio=2.0))
    assert (found.table.num_rows, dict(found.dropped)) == (0, {reason: len(rows)})


def test_a_margin_of_a_tenth_is_met_by_three_tenths_less_two() -> None:
    assert dpo_pairs(rewarded([0.3, 0.2]), PairRule(min_margin=0.1)).table.num_rows == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"strategy": "best"}, "pairs must be one of max_min, max_random, adjacent, got 'best'"),
        ({"min_margin": -1.0}, "min_margin must be at least 0"),
        ({"max_length_ratio": 0.9}, "max_length_ratio must be at least 1"),
    ],
)
def test_a_rule_out_of_bounds_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(JobError, match=reason):
        PairRule(**options)
