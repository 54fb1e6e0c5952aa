"""A scorer that hangs, crashes, leaks or prints costs the answer it was given, and nothing else."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.errors import JobError
from rollmill.tasks.rewards.build_plain import plain_config, plain_rater
from rollmill.tasks.rewards.isolation.fork_server import fork_server
from rollmill.tasks.rewards.isolation.isolated import Limits, isolated
from rollmill.tasks.rewards.item import Item, Outcome
from rollmill.tasks.rewards.scoring import Scorer

Write = Callable[[str], str]
MakeTable = Callable[..., pa.Table]
MakeScorer = Callable[..., Scorer]

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

FAULTY = """
import ctypes, os, subprocess, sys, time

leaked = []

def act(text):
    if text == "hang":
        while True:
            pass
    if text == "segfault":
        ctypes.string_at(0)
    if text == "exit":
        os._exit(7)
    if text == "print":
        print("printed by a scorer" * 1000)
        os.write(1, b"written by a scorer")
    if text == "leak":
        leaked.append(bytearray(64 * 2**20))
    if text == "huge":
        bytearray(2**34)
    if text.startswith("child "):
        child = subprocess.Popen(["sleep", "300"])
        open(text.removeprefix("child "), "w").write(str(child.pid))
        while True:
            pass
    return float(len(text))

def verl(solution_str, ground_truth=None, data_source=None):
    return act(solution_str)

def trl(completions, **columns):
    return [act(text) for text in completions]
"""


@pytest.mark.parametrize("style", ["verl", "trl"])
def test_each_fault_costs_the_answer_that_made_it(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer, style: str
) -> None:
    path = f"{user_module(FAULTY)}:{style}"
    job = scorer({"type": "function", "path": path, "seconds_per_call": 1, "memory_mb": 512})
    answers = [["a", "hang", "bb", "segfault"], ["exit", "print", "huge", "ccc"]]
    table = job.score_table(response_table(answers, [{"answer": 1}] * 2))
    assert table["reward"].to_pylist() == [1.0, None, 2.0, None, None, 5.0, None, 3.0]
    assert [reason and reason.removeprefix(f"{style}: ") for reason in table["reward_error"].to_pylist()] == [
        None,
        "no result within 1 s, and its process was ended",
        None,
        "its process was ended by SIGSEGV",
        "its process ended with exit status 7",
        None,
        "its process ran out of memory",
        None,
    ]


PRINTING = """
import sys
from rollmill.tasks.rewards.build_plain import plain_config
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.scoring import build_rewards

sys.path.append(sys.argv[1])
job = build_rewards([plain_config({"type": "function", "path": sys.argv[2]})])
item = Item(prompt="", response="print", columns={"answer": 1})
print(job._total.rate([[item]])[0][0].value)
"""


def test_what_a_scorer_prints_stays_out_of_the_standard_output(user_module: Write, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PRINTING, str(tmp_path), f"{user_module(FAULTY)}:verl"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert done.stdout == "5.0\n"
    assert "printed by a scorer" in done.stderr
    assert "written by a scorer" in done.stderr


def test_a_scorer_that_leaks_is_renewed_before_it_costs_an_answer(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer
) -> None:
    job = scorer({"type": "function", "path": f"{user_module(FAULTY)}:verl", "memory_mb": 300})
    table = job.score_table(response_table([["leak"] * 10], [{"answer": 1}]))
    assert table["reward"].to_pylist() == [4.0] * 10


def test_a_pattern_that_never_ends_fails_its_answer_by_name(response_table: MakeTable, scorer: MakeScorer) -> None:
    job = scorer({"type": "regex", "pattern": "^(a+)+$", "seconds_per_call": 1})
    table = job.score_table(response_table([["aaa", "a" * 60 + "b", "b"]]))
    assert table["reward"].to_pylist() == [1.0, None, 0.0]
    assert table["reward_error"][1].as_py() == "regex: no result within 1 s, and its process was ended"


def test_an_expression_that_never_ends_fails_its_answer_by_name(response_table: MakeTable, scorer: MakeScorer) -> None:
    job = scorer({"type": "math", "seconds_per_call": 5})
    answers = [["$4$", r"$\int_0^1 x^{x^{x^{x}}} \sin(e^{x^7}) dx = 9^{9^{9^{9}}}!$", "$2+2$"]]
    table = job.score_table(response_table(answers, [{"answer": "4"}]))
    values = table["reward"].to_pylist()
    assert (values[0], values[2]) == (1.0, 1.0)
    assert values[1] in (None, 0.0)  # it depends on sympy's version whether it ends


PATTERN = plain_config({"type": "regex", "pattern": r"^(\d+)$", "group": 1})
INSIDE = plain_rater(PATTERN)
CHILD = isolated(plain_rater(PATTERN), PATTERN.model_dump(mode="json"), Limits(seconds_per_call=10))


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.text(alphabet="1a", max_size=3), max_size=5), max_size=5),
    st.sampled_from(["1", None, [], "11"]),
)
def test_a_child_gives_what_the_same_process_would(texts: list[list[str]], answer: object) -> None:
    groups = [[Item(prompt="", response=text, columns={"answer": answer}) for text in group] for group in texts]
    assert CHILD.rate(groups) == INSIDE.rate(groups)


def test_a_column_that_cannot_be_sent_costs_its_own_answers() -> None:
    columns: list[dict[str, object]] = [{"answer": "1"}, {"answer": "1", "lock": threading.Lock()}, {"answer": "1"}]
    groups = [[Item(prompt="", response="1", columns=own)] for own in columns]
    (first,), (second,), (third,) = CHILD.rate(groups)
    assert first == third == Outcome(value=1.0)
    assert "cannot be sent to the reward's process: TypeError" in str(second.reason)


def test_four_threads_have_a_child_each_and_lose_nothing() -> None:
    start = threading.Barrier(4)
    groups = [[Item(prompt="", response=str(n), columns={"answer": "3"}) for n in range(8)] for _ in range(100)]

    def rate() -> list[list[Outcome]]:
        start.wait()
        return CHILD.rate(groups)

    with ThreadPoolExecutor(4) as pool:
        results = [future.result() for future in [pool.submit(rate) for _ in range(4)]]
    assert results == [[[Outcome(value=float(n == 3)) for n in range(8)]] * 100] * 4


def test_what_a_scorer_started_ends_with_it(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer, tmp_path: Path
) -> None:
    job = scorer({"type": "function", "path": f"{user_module(FAULTY)}:verl", "seconds_per_call": 1})
    table = job.score_table(response_table([[f"child {tmp_path / 'pid'}"]], [{"answer": 1}]))
    assert table["reward"].to_pylist() == [None]
    assert not _runs(int((tmp_path / "pid").read_text()))


def test_a_new_fork_server_takes_the_place_of_one_that_was_killed(
    response_table: MakeTable, scorer: MakeScorer
) -> None:
    job = scorer({"type": "regex", "pattern": "a"})
    table = response_table([["a", "b"]])
    assert job.score_table(table)["reward"].to_pylist() == [1.0, 0.0]
    fork_server()._process.kill()
    fork_server()._process.wait()
    assert job.score_table(table)["reward"].to_pylist() == [1.0, 0.0]


ORPHANS = """
import os, signal, sys
from rollmill.tasks.rewards.build_plain import plain_config
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.scoring import build_rewards

job = build_rewards([plain_config({"type": "regex", "pattern": "^(a+)+$", "seconds_per_call": 600})])
job._total.rate([[Item(prompt="", response="a")]])
print("ready", flush=True)
job._total.rate([[Item(prompt="", response="a" * 100 + "b")]])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent's life")
def test_no_process_is_left_when_the_scoring_process_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        descendants = psutil.Process(process.pid).children(recursive=True)
        assert len(descendants) == 2  # the fork server and the hanging worker
        process.send_signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs(descendants, timeout=5)
    assert (len(gone), alive) == (2, [])


def test_a_child_that_cannot_build_its_reward_fails_every_answer_once(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer, tmp_path: Path
) -> None:
    name = user_module(
        f"""
        import os
        if os.getpid() != {os.getpid()}:
            with open({str(tmp_path / "tries")!r}, "a") as file:
                file.write("x")
            raise RuntimeError("no licence")
        def trl(completions): return [0.0] * len(completions)
        def verl(solution_str, ground_truth): return 0.0
        """
    )
    for style in ("trl", "verl"):
        table = scorer({"type": "function", "path": f"{name}:{style}"}).score_table(
            response_table([["a", "b"], ["c", "d"]], [{"answer": 1}] * 2)
        )
        assert table["reward"].to_pylist() == [None] * 4
        assert "process could not start: " in table["reward_error"][3].as_py()
        assert "RuntimeError: no licence" in table["reward_error"][3].as_py()
    assert (tmp_path / "tries").read_text() == "xx"


def test_a_batched_function_gets_whole_groups_up_to_its_limit(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer
) -> None:
    name = user_module("def size(completions): return [float(len(completions))] * len(completions)")
    job = scorer({"type": "function", "path": f"{name}:size", "answers_per_call": 5})
    table = job.score_table(response_table([["a", "b"]] * 3 + [["a"] * 6]))
    assert table["reward"].to_pylist() == [4.0] * 4 + [2.0] * 2 + [6.0] * 6


def test_limits_that_make_no_sense_are_refused(scorer: MakeScorer) -> None:
    for wrong in ({"seconds_per_call": 0}, {"memory_mb": 1}):
        with pytest.raises(ValueError, match="greater than"):
            scorer({"type": "regex", "pattern": "a", **wrong})
    with pytest.raises(JobError):
        scorer({"type": "function", "path": "no_such_module:f", "isolated": False})


def test_an_interrupt_while_a_child_works_ends_the_child() -> None:
    config = plain_config({"type": "regex", "pattern": "^(a+)+$"})
    rater = isolated(plain_rater(config), config.model_dump(mode="json"), Limits(seconds_per_call=600))
    rater.rate([[Item(prompt="", response="a")]])  # so that the child has started
    timer = threading.Timer(0.5, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        rater.rate([[Item(prompt="", response="a" * 100 + "b")]])
    timer.join()
    assert rater.rate([[Item(prompt="", response="a")]]) == [[Outcome(value=1.0)]]
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if child.cpu_percent(0.2) > 50]


def _runs(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return False
    return True
