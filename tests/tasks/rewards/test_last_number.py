"""The reward last_number reads numbers as people and models write them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.errors import RewardError
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.last_number import LastNumber, last_number

NUMBERS = st.decimals(min_value=-(10**15), max_value=10**15, places=4, allow_nan=False, allow_infinity=False)
WORDS = st.text(alphabet="abcxyz ?!:;\n", max_size=20)
WRAPPERS = st.sampled_from(
    ["{}", "{}.", "{},", "= {}", "({})", "**{}**", "${}$", r"\boxed{{{}}}", r"$\boxed{{{}}}$.", "<answer>{}</answer>"]
)


def judge(response: str, answer: object, **options: float) -> float:
    return LastNumber(**options).score_item(Item(prompt="", response=response, columns={"answer": answer}))


@st.composite
def formatted(draw: st.DrawFn) -> tuple[Decimal, str]:
    """Draw a number and one of the ways to write it."""
    number = draw(NUMBERS)
    text = f"{abs(number):,f}" if draw(st.booleans()) else f"{abs(number):f}"
    if draw(st.booleans()) and "." in text:
        text = text.rstrip("0").rstrip(".")
    if draw(st.booleans()):
        text = text.replace(",", draw(st.sampled_from(["{,}", r"\,", r",\!", r"\!"])))
    sign = draw(st.sampled_from(["-", "−"])) if number < 0 else draw(st.sampled_from(["", "+"]))
    currency = draw(st.sampled_from(["", "€"]))
    return number, sign + currency + text


@given(formatted(), WORDS, WRAPPERS, WORDS)
def test_a_number_is_read_back_however_it_is_written(
    written: tuple[Decimal, str], before: str, wrapper: str, after: str
) -> None:
    number, text = written
    assert last_number(f"{before} 17 {before} {wrapper.format(text)} {after}") == number


@given(NUMBERS, NUMBERS)
def test_an_answer_scores_one_exactly_when_its_last_number_is_the_right_one(said: Decimal, right: Decimal) -> None:
    assert judge(f"I say {said:f}.", f"{right:f}") == float(said == right)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 + 4 = 7.", "7"),
        ("10-3", "3"),
        ("10 - 3", "3"),
        ("x = -3", "-3"),
        ("(-3)", "-3"),
        ("f(2)-3", "3"),
        ("-$5.50", "-5.50"),
        (r"\$1,000", "1000"),
        ("1, 234", "234"),
        ("1,2345", "2345"),
        ("12,345,678.90", "12345678.90"),
        ("half is .5", "0.5"),
        ("1e-05", "0.00001"),
        ("2e3 metres", "2000"),
        ("2em", "2"),
        ("50%", "50"),
        ("42km", "42"),
        ("答案是42。", "42"),
        (r"\boxed{7} in 3 steps", "7"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{x = \frac{9}{1} = 9}", "9"),
        (r"\boxed{5} and \boxed{6", "5"),
        ("1.2.3", "3"),
    ],
)
def test_the_last_number_of(text: str, number: str) -> None:
    assert last_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "none at all", "-", "$", r"\boxed{} of 3", r"\boxed{x}, since 3 is odd"])
def test_there_is_no_number_in(text: str) -> None:
    assert last_number(text) is None
    assert judge(text, 3) == 0.0


@pytest.mark.parametrize(
    "truth",
    [
        1234,
        1234.0,
        "1234",
        "1,234",
        "1234.",
        " 1234\n",
        "48/2 = 24, 24+1210\n#### 1,234",
        r"so \boxed{1234}",
        ["7", 1234],
    ],
)
def test_a_ground_truth_may_be_a_number_a_text_a_worked_solution_or_several(truth: object) -> None:
    assert judge("It is 1234.", truth) == 1.0
    assert judge("It is 1235.", truth) == 0.0


@pytest.mark.parametrize("truth", ["1/2", "3 or 4", "unknown", "", r"\frac{1}{2}", "2024-01-05", []])
def test_a_ground_truth_that_is_not_one_number_fails_by_name(truth: object) -> None:
    with pytest.raises(RewardError, match="ground truth"):
        judge("2", truth)


def test_a_tolerance_widens_what_counts_as_equal() -> None:
    assert judge("3.14", "3.15", tolerance=0.01) == 1.0
    assert judge("3.14", "3.151", tolerance=0.01) == 0.0


@pytest.mark.parametrize(
    "text", [r"\boxed{" * 50_000, "1," * 50_000 + "x", "-" * 100_000, "1" * 100_000, "{" * 100_000]
)
@pytest.mark.timeout(10)
def test_an_endless_answer_is_judged_in_one_pass(text: str) -> None:
    assert judge(text, 3) == 0.0
