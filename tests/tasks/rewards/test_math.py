"""The reward math judges meaning, in any thread."""

import builtins
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollmill.errors import JobError, RewardError
from rollmill.tasks.rewards import math as math_reward
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.math import Math


def judge(response: str, answer: object) -> float:
    return Math().score_item(Item(prompt="", response=response, columns={"answer": answer}))


@pytest.mark.parametrize(
    ("response", "answer", "value"),
    [
        (r"So $\frac{1}{2}$.", "0.5", 1.0),
        (r"\boxed{\frac{\sqrt{3}}{3}}", r"\frac{1}{\sqrt{3}}", 1.0),
        ("The answer is 1/2", r"\frac12", 1.0),
        (r"$\{2, 1\}$", r"\{1, 2\}", 1.0),
        ("The answer is 1,234", "#### 1234", 1.0),
        (r"$x = 5$", "The answer is $5$", 1.0),
        ("$3$", ["2", "3"], 1.0),
        ("$3$", 2, 0.0),
        ("I do not know", "2", 0.0),
        ("", "2", 0.0),
    ],
)
def test_what_means_the_same_scores_one(response: str, answer: object, value: float) -> None:
    assert judge(response, answer) == value


def test_a_ground_truth_without_an_expression_fails_by_name() -> None:
    with pytest.raises(RewardError, match="finds no expression in the ground truth"):
        judge("$2$", "")


def test_it_judges_in_threads_as_in_the_main_thread(caplog: pytest.LogCaptureFixture) -> None:
    cases = [(rf"So it is $\frac{{{n}}}{{{d}}}$", f"{2 * n}/{2 * d}") for n in range(1, 6) for d in range(1, 6)]
    start = threading.Barrier(4)

    def judge_all() -> list[float]:
        start.wait()
        return [judge(response, answer) for response, answer in cases]

    with ThreadPoolExecutor(4) as pool:
        results = [future.result() for future in [pool.submit(judge_all) for _ in range(4)]]
    assert results == [[1.0] * len(cases)] * 4
    assert caplog.records == []


def test_without_the_extra_the_job_is_refused_with_the_command_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, globals: Mapping[str, object] | None = None, locals: object = None, *rest: object) -> object:
        if name.startswith("math_verify"):
            raise ImportError(f"No module named {name!r}")
        return imported(name, globals, locals, *rest)  # type: ignore[arg-type]

    math_reward._math_verify.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(JobError, match=r'pip install "rollmill\[math\]"'):
        Math()
