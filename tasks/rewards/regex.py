"""Reward `regex`: a pattern is found in the answer, and what its group caught is right."""

from __future__ import annotations

import re
from collections.abc import Collection

from rollmill.errors import JobError
from rollmill.tasks.rewards.ground_truth import accepted_answers
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.rule import AnswerRule


class Regex(AnswerRule):
    r"""1.0 when `pattern` is found anywhere in the answer, else 0.0.

    With `group`, a number or a name, the text that this group caught must also equal the ground truth, white space
    around both dropped; the first place where the pattern matches counts. Flags go into the pattern: `(?is)…`.
    Raises JobError when the pattern cannot be compiled or has no such group.

        >>> Regex(r"(?i)answer:\s*(\w+)", group=1).score(["2+2?"], [["Answer: 4", "answer: 5", "4"]], answer=["4"])
        tensor([[1., 0., 0.]])
    """

    def __init__(self, pattern: str, group: int | str | None = None, answer_column: str | None = None) -> None:
        super().__init__(answer_column)
        self.pattern = compile_pattern(pattern, group)
        self.group = group

    def missing_column(self, columns: Collection[str]) -> str | None:
        """Return the ground truth's columns when a group is compared and the prompts have none of them."""
        return None if self.group is None else super().missing_column(columns)

    def score_item(self, item: Item) -> float:
        """Return 1.0 or 0.0. Raises RewardError when a group is compared and the prompt has no ground truth."""
        if self.group is None:
            return float(self.pattern.search(item.response) is not None)
        truths = [text.strip() for text in accepted_answers(item.columns, self.answer_column)]
        match = self.pattern.search(item.response)
        caught = match[self.group] if match else None
        return float(caught is not None and caught.strip() in truths)


def compile_pattern(pattern: str, group: int | str | None) -> re.Pattern[str]:
    """Return the compiled pattern. Raises JobError when it is not one, or has no group of this number or name."""
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise JobError(f"the pattern {pattern!r} is not a regular expression: {error}") from error
    if isinstance(group, int) and not 0 <= group <= compiled.groups:
        raise JobError(f"the pattern {pattern!r} has {compiled.groups} groups, and no group {group}")
    if isinstance(group, str) and group not in compiled.groupindex:
        names = ", ".join(compiled.groupindex) or "none"
        raise JobError(f"the pattern {pattern!r} has no group named {group!r}; its named groups: {names}")
    return compiled
