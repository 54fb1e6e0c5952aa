"""Reward `last_number`: the last number of the answer is the right one."""

from __future__ import annotations

import re
from decimal import Decimal

from rollmill.errors import RewardError
from rollmill.tasks.rewards.boxed import last_boxed
from rollmill.tasks.rewards.ground_truth import accepted_answers
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.rule import AnswerRule

# It starts with a plain digit, so that the search skips what is none quickly; what stands before it is looked at later.
_DIGITS = re.compile(
    r"""
    \d\d{0,2}(?:(?:,\d{3})+(?!\d)|\d*)   # 1,234,567 or 1234
    (?:\.\d+)?                           # the full stop of "is 12." is none of it
    (?:[eE][-+]?\d{1,4}(?!\w))?          # 1e-05
    """,
    re.VERBOSE,
)
_BEFORE = re.compile(
    r"""
    (?:(?<![\w.)\]}%])(?P<sign>[-+−]))?  # a sign follows neither a word nor a closing bracket: 5-3 ends in 3
    \\?[$€£¥]?                           # -$5 is minus five
    (?P<dot>(?<![\w.])\.)?$              # half is .5, but neither wait...5 nor 1.2.5
    """,
    re.VERBOSE,
)
_LATEX_SEPARATOR = re.compile(r"(?<=\d)(?:\{,\}|,?\\[,!])(?=\d{3})")


class LastNumber(AnswerRule):
    r"""1.0 when the last number of the answer equals the ground truth, else 0.0.

    When the answer holds a LaTeX box, only the last box is looked at. Numbers are read with a sign, thousands
    separators (also LaTeX's `{,}`, `\,` and `,\!`), decimals and an exponent, and compared by value: `5`, `5.0` and
    `+5` are the same. A unit, a currency sign or a percent sign beside a number counts for nothing. `10-3` ends in 3
    and `= -3` in -3. `1,234` is one number; `1, 234` is two.

    The ground truth must hold exactly one number: after its last `####`, or in its last box, or else in all of it.
    Fractions such as 1/2 are two numbers; such items fail by name, and the reward `math` is the one for them.

    `tolerance` is the largest difference that still counts as equal.

        >>> answers = ["It is 1,234.", "1000 and 234", r"\boxed{1{,}234} (see 1)"]
        >>> LastNumber().score(["1000 + 234 = ?"], [answers], answer=["1234"])
        tensor([[1., 0., 1.]])
    """

    def __init__(self, answer_column: str | None = None, tolerance: float = 0.0) -> None:
        super().__init__(answer_column)
        self.tolerance = Decimal(repr(tolerance))

    def score_item(self, item: Item) -> float:
        """Return 1.0 or 0.0. Raises RewardError when the ground truth is not one number."""
        truths = [_only_number(text) for text in accepted_answers(item.columns, self.answer_column)]
        found = last_number(item.response)
        return float(found is not None and any(self._equal(found, truth) for truth in truths))

    def _equal(self, found: Decimal, truth: Decimal) -> bool:
        return found == truth or (self.tolerance > 0 and abs(found - truth) <= self.tolerance)


def last_number(text: str) -> Decimal | None:
    """Return the last number of the last LaTeX box of `text`, or of `text` when it has no box; None without one."""
    box = last_boxed(text)
    matches = _matches(text if box is None else box)
    return _value(matches[-1]) if matches else None


def _matches(text: str) -> list[re.Match[str]]:
    if "{,}" in text or "\\" in text:
        text = _LATEX_SEPARATOR.sub(",", text)
    return list(_DIGITS.finditer(text))


def _value(match: re.Match[str]) -> Decimal:
    text, start = match.string, match.start()
    # The sign, a backslash, the currency and the dot are four characters, and one more is needed to judge the sign.
    before = _BEFORE.search(text[max(0, start - 5) : start])
    assert before is not None
    sign = "-" if before["sign"] in ("-", "−") else ""
    return Decimal(sign + (before["dot"] or "") + match[0].replace(",", ""))


def _only_number(truth: str) -> Decimal:
    part = truth.rpartition("####")[2]
    box = last_boxed(part)
    matches = _matches(part if box is None else box)
    if len(matches) != 1:
        raise RewardError(f"the ground truth {truth[:80]!r} holds {len(matches)} numbers, not one")
    return _value(matches[0])
