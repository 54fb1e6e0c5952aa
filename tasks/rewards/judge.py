"""Reward `judge`: a language model behind an OpenAI-compatible service scores one answer at a time."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import jinja2
import jinja2.meta
from jinja2.sandbox import SandboxedEnvironment

from rollmill.errors import JobError, RewardError
from rollmill.tasks.rewards.ground_truth import ground_truth, missing_ground_truth
from rollmill.tasks.rewards.item import Item, Outcome, outcome_of
from rollmill.tasks.rewards.rating import UnavailableError, missing_names
from rollmill.tasks.rewards.service import Service

DEFAULT_PATTERN = r"(?i)score\W{0,5}(-?\d+(?:\.\d+)?)"
_SERVED = frozenset({"prompt", "response", "ground_truth"})


class Judge:
    """Asks a model about an answer, and reads the score from what it says.

    `template` is Jinja: `prompt`, `response`, `ground_truth` and the prompt's columns by their names. `pattern` has one
    group, which must catch a number between `lowest` and `highest`; its last place in the reply counts. A reply without
    one is a failure, not a low score.
    """

    def __init__(
        self,
        service: Service,
        *,
        model: str,
        template: str,
        pattern: str = DEFAULT_PATTERN,
        lowest: float = 0.0,
        highest: float = 10.0,
        answer_column: str | None = None,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        self._service = service
        self._model = model
        self._template, self._names = compile_template(template)
        self._pattern = re.compile(pattern)
        self._bounds = (lowest, highest)
        self._answer_column = answer_column
        self._request = dict(request or {})

    def missing_column(self, columns: Collection[str]) -> str | None:
        """Return what the prompts lack for the template, given the names of their columns; None when nothing."""
        lacking = missing_ground_truth(columns, self._answer_column) if "ground_truth" in self._names else None
        return lacking or missing_names(self._names - _SERVED, columns)

    def judge(self, item: Item) -> Outcome:
        """Return the score of one answer. Raises RewardError when there is none."""
        names = {**item.columns, "prompt": item.prompt, "response": item.response}
        if "ground_truth" in self._names:
            names["ground_truth"] = ground_truth(item.columns, self._answer_column)
        try:
            message = self._template.render(names)
        except jinja2.TemplateError as error:
            raise RewardError(f"the judge's template cannot be filled: {error}") from error
        body = {**self._request, "model": self._model, "messages": [{"role": "user", "content": message}]}
        return outcome_of(
            read_score(reply_of(self._service.post(body), self._service.url), self._pattern, self._bounds)
        )


def compile_template(text: str) -> tuple[jinja2.Template, frozenset[str]]:
    """Return the template and the names that it uses. Raises JobError when it cannot be read."""
    environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    try:
        names = jinja2.meta.find_undeclared_variables(environment.parse(text))
        return environment.from_string(text), frozenset(names)
    except jinja2.TemplateSyntaxError as error:
        raise JobError(f"the judge's template cannot be read: {error.message} (line {error.lineno})") from error


def reply_of(answer: object, url: str) -> str:
    """Return the text that a chat completion holds. Raises UnavailableError when the answer is something else."""
    try:
        content = answer["choices"][0]["message"]["content"]  # type: ignore[index]
    except (KeyError, IndexError, TypeError) as error:
        raise UnavailableError(f"{url} answered with no chat completion: {str(answer)[:200]}") from error
    if not isinstance(content, str):
        raise RewardError(f"{url} answered with no text")
    return content


def read_score(reply: str, pattern: re.Pattern[str], bounds: tuple[float, float]) -> float:
    """Return the number that the pattern's last match caught. Raises RewardError without one within the bounds.

    >>> read_score("A fair try. Score: 7.5", re.compile(DEFAULT_PATTERN), (0, 10))
    7.5
    """
    matches = list(pattern.finditer(reply))
    if not matches or matches[-1][1] is None:
        raise RewardError(f"the judge gave no score: {reply[-200:]!r}")
    try:
        score = float(matches[-1][1])
    except ValueError as error:
        raise RewardError(f"the judge's score is not a number: {matches[-1][1]!r}") from error
    if not bounds[0] <= score <= bounds[1]:
        raise RewardError(f"the judge's score {score:g} is not between {bounds[0]:g} and {bounds[1]:g}")
    return score
