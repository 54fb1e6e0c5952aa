"""Reasons are counted by what they have in common, never beyond a bound, and never lost."""

from hypothesis import given
from hypothesis import strategies as st

from rollmill.tasks.rewards.reasons import MAX_REASONS, commonest, count_reasons, reason_kind

COUNTED = st.lists(st.tuples(st.text(max_size=300), st.integers(1, 50)), max_size=60)


def test_reasons_that_differ_in_numbers_and_quotes_are_one() -> None:
    one = "math: ValueError: invalid literal for int() with base 10: 'abc' at 0x7f01"
    other = "math: ValueError: invalid literal for int() with base 10: 'x y' at 0x9c"
    assert count_reasons([(one, 1), (other, 2)]) == {one: 3}
    assert reason_kind(one) != reason_kind(one.replace("ValueError", "KeyError"))


@given(COUNTED)
def test_every_failure_is_counted_under_a_bounded_number_of_bounded_reasons(counted: list[tuple[str, int]]) -> None:
    counts = count_reasons(counted)
    assert sum(counts.values()) == sum(times for _, times in counted)
    assert len(counts) <= MAX_REASONS + 1
    assert all(len(reason) <= 200 for reason in counts)


@given(COUNTED, COUNTED)
def test_counts_of_parts_add_up_to_the_counts_of_the_whole(
    one: list[tuple[str, int]], other: list[tuple[str, int]]
) -> None:
    kinds = {reason_kind(reason) for reason, _ in one + other}
    joined = count_reasons([*count_reasons(one).items(), *count_reasons(other).items()])
    if len(kinds) <= MAX_REASONS:
        assert sorted(joined.values()) == sorted(count_reasons(one + other).values())


def test_the_commonest_come_first() -> None:
    assert commonest({"rare": 1, "common": 5, "some": 2, "few": 1}) == ["5 × common", "2 × some", "1 × rare"]
