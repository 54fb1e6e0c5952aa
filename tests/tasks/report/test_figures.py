"""The figures of a version, against counting by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_builders import ERROR, FAILED, publish, rewarded
from store_builders import in_memory

from rollmill.storage.version import DatasetVersion
from rollmill.tasks.report.answers import PromptResult
from rollmill.tasks.report.figures import version_figures
from rollmill.tasks.report.ranking import compare, easiest_first, hardest_first

REWARDS = st.none() | st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(-1e6, 1e6)


def version_with(*groups: list[float | None], **settings_of_publish: Any) -> DatasetVersion:
    return publish(in_memory(), [[rewarded(reward) for reward in group] for group in groups], **settings_of_publish)


@given(st.lists(st.lists(REWARDS, min_size=3, max_size=3), min_size=1, max_size=9))
@settings(max_examples=25)
def test_figures_are_those_of_counting_rewards_by_hand(groups: list[list[float | None]]) -> None:
    found = version_figures(version_with(*groups))
    known = [reward for group in groups for reward in group if reward is not None]
    assert (found.figures.rows, found.figures.groups) == (3 * len(groups), len(groups))
    assert (found.figures.scored, found.figures.unscored) == (len(known), 3 * len(groups) - len(known))
    assert found.figures.mean_reward == (pytest.approx(sum(known) / len(known)) if known else None)
    assert sorted(found.rewards[~np.isnan(found.rewards)].tolist()) == sorted(known)
    for prompt, group in zip(found.prompts, groups, strict=True):
        scored = [reward for reward in group if reward is not None]
        assert (prompt.scored, prompt.failed) == (len(scored), 3 - len(scored))
        assert prompt.passed == sum(reward >= 1 for reward in scored)
        assert prompt.mean_reward == (pytest.approx(sum(scored) / len(scored)) if scored else None)


def test_a_reward_that_failed_is_not_a_reward_of_0() -> None:
    found = version_figures(version_with([1.0, None, None], [None, None, None]))
    assert found.figures.mean_reward == 1.0
    assert [prompt.pass_rate for prompt in found.prompts] == [1.0, None]
    assert hardest_first(found.prompts) == easiest_first(found.prompts) == [found.prompts[0]]
    assert found.to_json()["reasons"] == {"judge: timed out": 5}


def test_rows_that_ended_in_an_error_have_no_length_and_no_logprob() -> None:
    version = publish(in_memory(), [[{"logprobs": [-1.0, -3.0], "response_token_ids": [7, 8]}, ERROR]])
    found = version_figures(version)
    assert found.lengths.tolist() == [2, 0]
    assert found.mean_logprobs[0] == -2.0
    assert math.isnan(found.mean_logprobs[1])
    assert (found.logprobs.tokens, found.logprobs.mean, found.logprobs.least) == (2, -2.0, -3.0)
    assert found.errors == {"the prompt is too long": 1}
    assert found.to_json()["mean_response_tokens"] == 2.0


def test_tokens_are_sure_or_unlikely_by_their_probability() -> None:
    logprobs = [math.log(0.995), math.log(0.5), math.log(0.009), math.log(0.02)]
    changes = {"logprobs": logprobs, "response_token_ids": [1, 2, 3, 4]}
    found = version_figures(publish(in_memory(), [[changes, ERROR]])).logprobs
    assert (found.sure, found.unlikely) == (0.25, 0.25)


def test_a_version_without_any_answer_has_figures_too() -> None:
    found = version_figures(publish(in_memory(), [[ERROR, ERROR]]))
    assert (found.logprobs.mean, found.figures.mean_reward, found.to_json()["mean_response_tokens"]) == (None,) * 3


def test_a_prompt_that_two_runs_answered_counts_once_for_each() -> None:
    objects = in_memory()
    publish(objects, [[rewarded(0.0), rewarded(0.0)]], "first", policy_version=1)
    version = publish(objects, [[rewarded(1.0), FAILED]], "second", policy_version=2)
    newest, both = version_figures(version), version_figures(version, window=2)
    assert (newest.figures.rows, newest.figures.mean_reward) == (2, 1.0)
    assert (both.figures.rows, both.figures.groups, both.figures.mean_reward) == (4, 2, pytest.approx(1 / 3))
    assert [(prompt.run_id, prompt.pass_rate) for prompt in both.prompts] == [("second", 1.0), ("first", 0.0)]
    assert [figures.mean_reward for figures in both.by_run] == [1.0, 0.0]
    assert both.figures.pass_at(1) == 0.5


def test_reward_parts_are_averaged_over_the_answers_that_have_them() -> None:
    def parts(**values: float | None) -> dict[str, Any]:
        return {"reward_parts": [{"name": name, "value": value} for name, value in values.items()]}

    group = [parts(right=1.0, short=0.5), parts(right=0.0, short=math.nan), {**ERROR, "reward_parts": None}]
    version = publish(in_memory(), [group])
    assert version_figures(version).parts == {"right": (2, 0.5), "short": (1, 0.5)}


def prompt_of(name: str, passed: int, scored: int, mean: float | None, run_id: str = "run") -> PromptResult:
    file = version_with([1.0]).files[0]
    return PromptResult(
        run_id=run_id, prompt_id=name, file=file, answers=4, scored=scored, passed=passed, failed=4 - scored,
        mean_reward=mean,
    )  # fmt: skip


def test_prompts_are_ranked_by_pass_rate_then_mean_reward_then_id() -> None:
    prompts = [prompt_of("c", 0, 4, 0.5), prompt_of("b", 0, 4, 0.2), prompt_of("a", 0, 4, 0.5), prompt_of("d", 2, 2, 1)]
    assert [prompt.prompt_id for prompt in hardest_first(prompts)] == ["b", "a", "c", "d"]
    assert [prompt.prompt_id for prompt in easiest_first(prompts)] == ["d", "a", "c", "b"]


def test_versions_are_compared_by_the_prompts_that_both_scored() -> None:
    before = [prompt_of("up", 1, 4, 0.25), prompt_of("down", 4, 4, 1.0), prompt_of("same", 2, 4, 0.5),
              prompt_of("gone", 1, 4, 0.25), prompt_of("unscored", 0, 0, None)]  # fmt: skip
    after = [prompt_of("up", 3, 4, 0.75), prompt_of("down", 1, 4, 0.25), prompt_of("same", 1, 2, 0.5),
             prompt_of("new", 1, 4, 0.25), prompt_of("unscored", 1, 4, 0.25)]  # fmt: skip
    found = compare(before, after)
    assert [(change.after.prompt_id, change.pass_rate) for change in found.gains(9)] == [("up", 0.5)]
    assert [(change.after.prompt_id, change.pass_rate) for change in found.losses(9)] == [("down", -0.75)]
    assert (found.better, found.worse, len(found.changes)) == (1, 1, 3)
    assert (found.only_before, found.only_after) == (1, 2)


def test_of_several_runs_the_newest_is_compared() -> None:
    after = [prompt_of("p", 4, 4, 1.0, "newest"), prompt_of("p", 0, 4, 0.0, "older")]
    (change,) = compare([prompt_of("p", 2, 4, 0.5)], after).changes
    assert change.pass_rate == 0.5
