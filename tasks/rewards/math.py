"""Reward `math`: the answer means the same as the right one, by math-verify."""

from __future__ import annotations

import logging
import threading
from functools import lru_cache
from typing import Any

from rollmill.errors import JobError, RewardError
from rollmill.tasks.rewards.ground_truth import accepted_answers
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.rule import AnswerRule

_LOCK = threading.Lock()
"""The parser that math-verify is built on keeps one table for all threads."""


class Math(AnswerRule):
    r"""1.0 when math-verify finds the answer equal to the ground truth, else 0.0: fractions, LaTeX, sets, units.

    An answer in which no expression is found scores 0.0; a ground truth in which none is found fails by name. It
    needs the extra: `pip install "rollmill[math]"`; without it the constructor raises JobError.

    math-verify's own time limits are signals, which work in the main thread alone, so they are off here; a time limit
    is the business of whoever calls.

        >>> Math().score(["Half of 1?"], [[r"So it is $\frac{1}{2}$.", "0.5", "$2$"]], answer=["1/2"])
        tensor([[1., 1., 0.]])
    """

    def __init__(self, answer_column: str | None = None) -> None:
        super().__init__(answer_column)
        self._parse_truth = lru_cache(maxsize=4096)(_parse_truth)
        _math_verify()

    def score_item(self, item: Item) -> float:
        """Return 1.0 or 0.0. Raises RewardError when the ground truth holds no expression."""
        truths = accepted_answers(item.columns, self.answer_column)
        with _LOCK:
            golds = [self._parse_truth(truth) for truth in truths]
            found = _parse(item.response)
            verify = _math_verify().verify
            return float(any(verify(gold, found, timeout_seconds=None) for gold in golds))


def _parse_truth(truth: str) -> Any:
    # A ground truth is often bare LaTeX, which is only seen as LaTeX between dollar signs.
    part = truth.rpartition("####")[2].strip()
    parsed = _parse(part) if "$" in part or "\\boxed" in part else _parse(f"${part}$")
    if not parsed:
        raise RewardError(f"math-verify finds no expression in the ground truth {truth[:80]!r}")
    return parsed


def _parse(text: str) -> Any:
    return _math_verify().parse(text, parsing_timeout=None)


@lru_cache(maxsize=1)
def _math_verify() -> Any:
    try:
        import math_verify
        import math_verify.grader
        import math_verify.parser
    except ImportError as error:
        raise JobError(
            f'the reward math needs math-verify, which cannot be imported ({error}): pip install "rollmill[math]"'
        ) from error
    for module in (math_verify.parser, math_verify.grader):
        module.logger.addFilter(_is_not_about_its_time_limit)
    return math_verify


def _is_not_about_its_time_limit(record: logging.LogRecord) -> bool:
    return "Timeout is disabled" not in record.getMessage()
