"""Reward `format`: the answer is made of tags in their order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from rollmill.errors import JobError
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.rule import RuleReward

Outside = Literal["nothing", "after", "anything"]


class Format(RuleReward):
    """1.0 when each of `tags` is opened and closed exactly once, one after the other in their order, else 0.0.

    `outside` says what may stand outside the tags besides white space: nothing, text after the last tag (an answer
    that follows its thoughts), or anything. Raises JobError for tags that are not names, or not distinct.

        >>> good, swapped = "<think>2+2</think> <answer>4</answer>", "<answer>4</answer><think>2+2</think>"
        >>> Format().score(["2+2?"], [[good, swapped, "Well: " + good]])
        tensor([[1., 0., 0.]])
        >>> Format(["think"], outside="after").score(["2+2?"], [["<think>2+2</think> It is 4."]])
        tensor([[1.]])
    """

    def __init__(self, tags: Sequence[str] = ("think", "answer"), outside: Outside = "nothing") -> None:
        check_tags(tags)
        self.marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]
        self.outside = outside

    def score_item(self, item: Item) -> float:
        """Return 1.0 or 0.0."""
        text = item.response
        if any(text.count(mark) != 1 for mark in self.marks):
            return 0.0
        starts = [text.index(mark) for mark in self.marks]
        ends = [start + len(mark) for start, mark in zip(starts, self.marks, strict=True)]
        if any(end > start for end, start in zip(ends, starts[1:], strict=False)):
            return 0.0
        gaps = [text[end:start] for end, start in zip([0, *ends[1::2]], [*starts[::2], len(text)], strict=True)]
        if self.outside == "anything":
            return 1.0
        return float(not any(gap.strip() for gap in (gaps[:-1] if self.outside == "after" else gaps)))


def check_tags(tags: Sequence[str]) -> None:
    """Raise JobError unless the tags are distinct names."""
    if len(set(tags)) != len(tags) or not tags:
        raise JobError(f"tags must be one or more distinct names, got {list(tags)}")
    for tag in tags:
        if not re.fullmatch(r"[\w|.-]+", tag):
            raise JobError(f"a tag is a name of letters, digits, _, -, . or |, without its brackets; got {tag!r}")
