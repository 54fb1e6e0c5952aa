"""Reward `code`: the answer's program passes its tests."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rollmill.errors import RewardError
from rollmill.tasks.rewards.item import Item, Outcome
from rollmill.tasks.rewards.rule import RuleReward
from rollmill.tasks.rewards.sandbox.run import ProgramTest, SandboxLimits, passes

TEST_COLUMNS = ("tests", "test", "test_list", "test_cases", "input_output")
_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_PYTHON = frozenset({"", "python", "py", "python3"})


class Code(RuleReward):
    """1.0 when the last Python code block of the answer passes all tests of its prompt, else 0.0.

    With `partial` it is the share of tests passed. Tests come from the column `tests_column`, or else the first of
    tests, test, test_list, test_cases and input_output that a prompt has: Python source, or a list of it, each run
    after the program in the same names; or cases of input and expected output, as a list of objects with `input` and
    `output` or one object with lists `inputs` and `outputs`, each a run of the program. JSON text is read as what it
    holds. A source that defines `check` is called with the function that the column `entry_point` names.

    Each run is a child process with limits, without the environment of this one and, where the system lets an ordinary
    user do that, without a network. An endless, crashing or greedy program fails its test. It is a guard against
    accidents, not a security boundary. A prompt without tests fails by name.

        >>> good = "Here:\\n```python\\ndef double(x):\\n    return 2 * x\\n```"
        >>> bad = "```python\\ndef double(x):\\n    return x\\n```"
        >>> Code().score(["Double it."], [[good, bad, "I cannot."]], tests=["assert double(2) == 4"])
        tensor([[1., 0., 0.]])
    """

    def __init__(
        self, tests_column: str | None = None, *, partial: bool = False, limits: SandboxLimits | None = None
    ) -> None:
        self.tests_columns = TEST_COLUMNS if tests_column is None else (tests_column,)
        self.partial = partial
        self.limits = limits or SandboxLimits()

    def missing_column(self, columns: Collection[str]) -> str | None:
        """Return the columns of tests when the prompts have none of them."""
        names = ", ".join(self.tests_columns)
        return None if set(columns) & set(self.tests_columns) else f"a column of tests ({names})"

    def score_item(self, item: Item) -> float:
        """Return a value in [0, 1]. Raises RewardError when the tests cannot be read, OSError when none can be run."""
        return self._share(self.run(item))

    def judge(self, item: Item) -> Outcome:
        """Return the reward and, beside it, how many tests there are and how many ran and passed."""
        passed = self.run(item)
        kept: dict[str, float | None] = {"tests": float(len(passed)), "passed": float(sum(passed))}
        return Outcome(value=self._share(passed), parts=kept)

    def run(self, item: Item) -> list[bool]:
        """Return for each test whether it passed; without `partial` those after the first failure are not run."""
        tests = read_tests(item.columns, self.tests_columns)
        program = last_python_block(item.response)
        passed = [False] * len(tests)
        for index, test in enumerate(tests if program is not None else []):
            passed[index] = passes(program or "", test, self.limits)
            if not passed[index] and not self.partial:
                break
        return passed

    def _share(self, passed: Sequence[bool]) -> float:
        return sum(passed) / len(passed) if self.partial else float(all(passed))


def last_python_block(text: str) -> str | None:
    """Return the last fenced code block that is Python, or of no named language; None without one."""
    blocks = [body for language, body in _FENCE.findall(text) if language.lower() in _PYTHON]
    return blocks[-1] if blocks else None


def read_tests(columns: Mapping[str, Any], names: Sequence[str]) -> list[ProgramTest]:
    """Return a prompt's tests. Raises RewardError when it has none, or in no form that is known."""
    value = next((columns[name] for name in names if columns.get(name)), None)
    if isinstance(value, str):
        value = _json_or_text(value)
    if isinstance(value, Mapping) and {"inputs", "outputs"} <= value.keys():
        inputs, outputs = value["inputs"], value["outputs"]
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise RewardError("the tests' inputs and outputs must be lists of one length")
        value = [{"input": given, "output": wanted} for given, wanted in zip(inputs, outputs, strict=True)]
    tests = [_test(one, columns) for one in (value if isinstance(value, list) else [value]) if one is not None]
    if not tests:
        raise RewardError(f"this prompt has no tests in {', '.join(names)}")
    return tests


def _test(one: object, columns: Mapping[str, Any]) -> ProgramTest:
    if isinstance(one, str):
        entry_point = columns.get("entry_point")
        calls_check = isinstance(entry_point, str) and entry_point.isidentifier() and "def check(" in one
        return ProgramTest(source=f"{one}\ncheck({entry_point})\n" if calls_check else one)
    if isinstance(one, Mapping) and isinstance(one.get("input"), str) and isinstance(one.get("output"), str):
        return ProgramTest(stdin=one["input"], stdout=one["output"])
    raise RewardError("a test must be Python source, or an object with the texts input and output")


def _json_or_text(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
