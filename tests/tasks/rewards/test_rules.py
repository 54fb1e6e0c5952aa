"""Each rule scores what it says, and fails by name where it cannot judge."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.errors import JobError, RewardError
from rollmill.tasks.rewards.boxed import last_boxed
from rollmill.tasks.rewards.contains import Contains
from rollmill.tasks.rewards.exact_match import ExactMatch
from rollmill.tasks.rewards.format import Format, Outside
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.length import Length
from rollmill.tasks.rewards.length_penalty import LengthPenalty
from rollmill.tasks.rewards.regex import Regex
from rollmill.tasks.rewards.rule import RuleReward


def judge(rule: RuleReward, response: str, **columns: object) -> float:
    return rule.score_item(Item(prompt="", response=response, columns=columns, token_ids=list(response.encode())))


@given(st.text(), st.text())
def test_exact_match_is_equality_of_what_is_left_after_stripping(response: str, answer: str) -> None:
    assert judge(ExactMatch(), response, answer=answer) == float(response.strip() == answer.strip())
    assert judge(ExactMatch(strip=False), response, answer=answer) == float(response == answer)


@given(st.text())
def test_exact_match_can_ignore_case(answer: str) -> None:
    rule = ExactMatch(ignore_case=True)
    assert judge(rule, answer.upper(), answer=answer) == float(
        answer.upper().strip().casefold() == answer.strip().casefold()
    )
    assert judge(rule, "STRASSE", answer="straße") == 1.0


def test_any_of_several_right_answers_is_right() -> None:
    assert judge(ExactMatch(), "UK", answer=["United Kingdom", "UK"]) == 1.0
    assert judge(Contains(), "in the UK.", answer=["United Kingdom", "UK"]) == 1.0
    assert judge(ExactMatch(), "5", answer=5) == 1.0


@given(st.text(), st.text(min_size=1).filter(str.strip), st.text())
def test_contains_finds_the_answer_wherever_it_stands(before: str, answer: str, after: str) -> None:
    assert judge(Contains(), before + answer + after, answer=answer) == 1.0
    assert judge(Contains(), "", answer=answer) == 0.0


def test_contains_refuses_an_empty_ground_truth() -> None:
    with pytest.raises(RewardError, match="empty"):
        judge(Contains(), "anything", answer=" ")


@pytest.mark.parametrize("answer", [{"a": 1}, [], [None], [["x"]]])
def test_a_ground_truth_of_another_type_fails_by_name(answer: object) -> None:
    with pytest.raises(RewardError, match="text, a number or a list"):
        judge(ExactMatch(), "x", answer=answer)


@given(st.text(alphabet="ab1", max_size=20))
def test_regex_without_a_group_asks_only_whether_it_is_found(response: str) -> None:
    assert judge(Regex(r"a+1"), response) == float(re.search(r"a+1", response) is not None)


def test_regex_with_a_group_compares_what_it_caught() -> None:
    named = Regex(r"answer is (?P<it>[^.]+)\.", group="it")
    assert judge(named, "The answer is  Rome .", answer="Rome") == 1.0
    assert judge(named, "The answer is Milan. The answer is Rome.", answer="Rome") == 0.0
    assert judge(Regex(r"a(b)?", group=1), "a", answer="b") == 0.0


@pytest.mark.parametrize(
    ("pattern", "group", "message"),
    [
        ("(", None, "not a regular expression"),
        ("a", 1, "no group 1"),
        ("(a)", -1, "no group -1"),
        ("(?P<x>a)", "y", "'y'.*: x"),
    ],
)
def test_a_pattern_that_cannot_work_is_refused_at_once(pattern: str, group: int | str | None, message: str) -> None:
    with pytest.raises(JobError, match=message):
        Regex(pattern, group)


@given(st.integers(1, 50), st.text(max_size=120))
def test_length_falls_evenly_on_both_sides_of_its_target(target: int, response: str) -> None:
    value = judge(Length(target=target, unit="characters"), response)
    assert value == pytest.approx(max(0.0, 1 - abs(len(response) - target) / target))
    assert judge(Length(max=target, unit="characters"), response) == float(len(response) <= target)


def test_length_counts_tokens_words_or_characters() -> None:
    text = "zwölf Wörter"
    assert judge(Length(max=12, unit="characters"), text) == 1.0
    assert judge(Length(max=12, unit="tokens"), text) == 0.0
    assert judge(Length(max=2, unit="words"), text) == 1.0
    assert judge(Length(max=1, unit="words"), text) == 0.0


def test_length_in_tokens_says_when_it_was_given_none() -> None:
    with pytest.raises(RewardError, match="response_token_ids"):
        Length(max=1).score(["q"], [["a"]])
    scores = Length(max=1).score(["q"], [["a", "b"]], response_token_ids=[[[5], [5, 6]]])
    assert scores.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("bounds", [{}, {"target": 1, "max": 1}, {"target": 0}, {"max": -1}])
def test_length_needs_exactly_one_bound(bounds: dict[str, int]) -> None:
    with pytest.raises(JobError, match="target or max"):
        Length(**bounds)


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {3}", "3"),
        (r"\boxed{a \fbox{b}}", "b"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{1} } \boxed{2}", "2"),
        (r"{ \boxed{1}", "1"),
        (r"\boxed{1", None),
        ("no box", None),
    ],
)
def test_the_last_box_of(text: str, box: str | None) -> None:
    assert last_boxed(text) == box


INSIDE = st.text(alphabet="ab <>/\n", max_size=10)


@given(st.lists(INSIDE, min_size=3, max_size=3), st.sampled_from(["", " ", "\n\n"]))
def test_format_is_right_whatever_stands_inside_its_tags(texts: list[str], space: str) -> None:
    think, answer, extra = texts
    right = f"{space}<think>{think}</think>{space}<answer>{answer}</answer>{space}"
    outside: list[tuple[Outside, str]] = [
        ("nothing", right),
        ("after", right + extra),
        ("anything", extra + right + extra),
    ]
    for allowed, text in outside:
        assert judge(Format(outside=allowed), text) == 1.0
    if extra.strip():
        assert judge(Format(), right + extra) == 0.0
        assert judge(Format(outside="after"), extra + right) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<think>a</think>",
        "<answer>4</answer><think>a</think>",
        "<think>a<answer>4</answer></think>",
        "<think>a</think><think>b</think><answer>4</answer>",
        "<think>a</think><answer>4",
        "</think>a<think><answer>4</answer>",
        "<think>a</think>x<answer>4</answer>",
    ],
)
def test_format_is_wrong_for(text: str) -> None:
    assert judge(Format(), text) == 0.0


@pytest.mark.parametrize("tags", [[], ["a", "a"], ["<a>"], [""]])
def test_format_refuses_tags_that_are_not_distinct_names(tags: list[str]) -> None:
    with pytest.raises(JobError, match="tag"):
        Format(tags)


@given(st.integers(1, 40), st.integers(1, 40), st.text(max_size=80))
def test_length_penalty_falls_evenly_over_its_buffer(longest: int, buffer: int, response: str) -> None:
    if buffer > longest:
        with pytest.raises(JobError, match="buffer"):
            LengthPenalty(max=longest, buffer=buffer)
        return
    value = judge(LengthPenalty(max=longest, buffer=buffer, unit="characters"), response)
    free, length = longest - buffer, len(response)
    expected = 0.0 if length <= free else -1.0 if length > longest else (free - length) / buffer
    assert value == pytest.approx(expected)
    assert str(value) != "-0.0"
