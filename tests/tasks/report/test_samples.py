"""What a page shows of the texts: bounded, spread over all, cut alike, special tokens told apart."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from builders import EOS_ID, byte_tokenizer, save_policy
from hypothesis import given
from hypothesis import strategies as st
from report_builders import ERROR, FAILED, publish, rewarded
from store_builders import in_memory

from rollmill.errors import InputError, PolicyError
from rollmill.tasks.prompts.rendering import tokenizer_fingerprint
from rollmill.tasks.report.figures import version_figures
from rollmill.tasks.report.naming import distinct, name_groups
from rollmill.tasks.report.ranking import easiest_first, hardest_first
from rollmill.tasks.report.samples import choose, read_samples, spread
from rollmill.tasks.report.segments import Segment, SpecialTokens, cut, fair_limit, find_special_tokens

NO_TOKENS = SpecialTokens(None, "there is none")


@given(st.lists(st.integers(0, 500)), st.integers(0, 5000))
def test_a_fair_limit_is_the_greatest_that_fits(lengths: list[int], most: int) -> None:
    limit = fair_limit(lengths, most)
    assert sum(min(length, limit) for length in lengths) <= most
    if any(length > limit for length in lengths):
        assert sum(min(length, limit + 1) for length in lengths) > most


@given(st.lists(st.tuples(st.text(max_size=30), st.booleans()), max_size=6), st.integers(0, 80))
def test_a_cut_text_keeps_its_beginning_and_end_and_says_how_much_is_missing(
    pieces: list[tuple[str, bool]], most: int
) -> None:
    segments = [Segment(text, is_special) for text, is_special in pieces]
    whole = "".join(text for text, _ in pieces)
    shown = cut(segments, most)
    assert sum(len(segment.text) + segment.left_out for segment in shown) == len(whole)
    assert sum(len(segment.text) for segment in shown) == min(most, len(whole))
    gap = next((place for place, segment in enumerate(shown) if segment.left_out), len(shown))
    assert whole.startswith("".join(segment.text for segment in shown[:gap]))
    assert whole.endswith("".join(segment.text for segment in shown[gap + 1 :]))


def prompts_of(rates: list[float | None], group_size: int = 4) -> Any:
    groups = [[rewarded(rate)] * group_size for rate in rates]
    return version_figures(publish(in_memory(), groups)).prompts


def test_all_prompts_are_shown_when_they_fit() -> None:
    prompts = prompts_of([0.0, None, 1.0])
    assert choose(prompts, 12) == list(prompts)


def test_no_more_answers_are_shown_than_allowed_and_the_listed_and_some_failed_are_among_them() -> None:
    prompts = prompts_of([None if place % 10 == 0 else place / 100 for place in range(100)])
    listed = [*hardest_first(prompts)[:5], *easiest_first(prompts)[:5]]
    chosen = choose(prompts, 100, listed)
    assert sum(prompt.answers for prompt in chosen) == 100
    assert all(prompt in chosen for prompt in listed)
    assert 3 <= sum(prompt.failed > 0 for prompt in chosen) <= 8
    assert [prompt.prompt_id for prompt in chosen] == sorted(
        (prompt.prompt_id for prompt in chosen), key=lambda name: int(name[1:])
    )
    means = [prompt.mean_reward for prompt in chosen if prompt.mean_reward is not None]
    assert max(second - first for first, second in itertools.pairwise(means)) < 0.2


def test_one_prompt_is_shown_even_when_its_group_is_larger_than_the_limit() -> None:
    assert len(choose(prompts_of([0.0, 1.0]), 1)) == 1


@given(st.integers(0, 70))
def test_spread_loses_no_prompt(count: int) -> None:
    places: Any = list(range(count))
    assert sorted(spread(places)) == places


def test_answers_are_ranked_by_reward_and_those_without_one_come_last() -> None:
    version = publish(in_memory(), [[rewarded(0.5), FAILED, rewarded(2.0), ERROR, rewarded(0.5)]])
    (group,) = read_samples(version.objects, version_figures(version).prompts, NO_TOKENS).groups
    assert [answer["sample"] for answer in group["answers"]] == [2, 0, 4, 1, 3]
    assert [answer["why"] for answer in group["answers"]] == [None, None, None, "judge: timed out", ERROR["error"]]
    assert json.loads(group["metadata"][0]) == {"answer": 0}


def test_long_texts_are_cut_alike_and_counted() -> None:
    version = publish(in_memory(), [[{"response_text": "x" * 1000}, {"response_text": "short"}]])
    found = read_samples(version.objects, version_figures(version).prompts, NO_TOKENS, max_characters=200)
    texts = {answer["sample"]: answer["text"] for answer in found.groups[0]["answers"]}
    assert texts[1] == ["short"]
    beginning, gap, end = texts[0]
    assert (set(beginning + end), len(beginning + end) + gap) == ({"x"}, 1000)
    assert 100 < len(beginning + end) < 200
    assert found.cut_texts == 1


def test_special_tokens_are_told_from_text_that_looks_like_them() -> None:
    tokens = SpecialTokens(byte_tokenizer())
    assert tokens.of_answer("write </s>", byte_ids("write </s>", EOS_ID)) == [
        Segment("write </s>"),
        Segment("</s>", is_special=True),
    ]


def byte_ids(text: str, *special: int) -> list[int]:
    ids: list[int] = byte_tokenizer()(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return [*ids, *special]


def test_a_text_that_its_ids_do_not_give_back_is_shown_as_it_is_stored() -> None:
    tokens = SpecialTokens(byte_tokenizer())
    assert tokens.of_answer("something else", byte_ids("text", EOS_ID)) == [Segment("something else")]
    assert tokens.of_prompt("something else", byte_ids("text")) == [Segment("something else")]


def test_the_tokenizer_of_a_local_policy_is_found_and_must_be_the_run_s(tmp_path: Path) -> None:
    policy = {"model": str(save_policy(tmp_path))}
    fingerprint = tokenizer_fingerprint(byte_tokenizer())
    assert find_special_tokens(policy, fingerprint, None).tokenizer is not None
    other = find_special_tokens(policy, "0" * 64, None)
    assert (other.tokenizer, "another tokenizer" in (other.absent or "")) == (None, True)
    with pytest.raises(InputError, match="is another tokenizer than the one"):
        find_special_tokens(policy, "0" * 64, policy["model"])
    assert find_special_tokens({"model": "gone"}, fingerprint, policy["model"]).tokenizer is not None


def test_nothing_is_fetched_for_a_tokenizer_that_is_not_here() -> None:
    found = find_special_tokens({"model": "someone/some-model"}, "0" * 64, None)
    assert found.absent == "the tokenizer of someone/some-model is not a folder on this machine; --tokenizer names it"
    assert find_special_tokens(None, None, None).absent == "the files do not agree on one policy"
    with pytest.raises(PolicyError):
        find_special_tokens({"model": "x"}, "0" * 64, "/no/such/folder")


def test_prompts_are_named_by_what_tells_them_apart() -> None:
    assert distinct(["Add: 1 + 2 =", "Add: 1 + 3 =", "Add: 1 + 2 ="]) == ["2", "3", "2"]
    assert distinct(["only one prompt"] * 2) == ["only one prompt"] * 2
    assert distinct(["a b", "a b c"]) == ["a b", "c"]
    assert distinct([]) == []
    assert max(map(len, distinct(["x" * 500, "y"]))) == 160
    groups: list[dict[str, Any]] = [{"id": "p0", "prompt": ["say\n", ["<s>"], "one"]}, {"id": "p1", "prompt": [""]}]
    name_groups(groups)
    assert [group["name"] for group in groups] == ["say one", "p1"]
