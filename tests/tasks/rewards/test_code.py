"""Programs are judged by their tests; nothing they do is more than a verdict."""

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from store_builders import parts_of

from rollmill.errors import JobError, RewardError
from rollmill.tasks.rewards.code import Code, last_python_block, read_tests
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.sandbox.run import ProgramTest, SandboxLimits, passes
from rollmill.tasks.rewards.scoring import Scorer

MakeTable = Callable[..., pa.Table]
MakeScorer = Callable[..., Scorer]
LIMITS = SandboxLimits(seconds=20, memory_bytes=2**30, file_bytes=2**20)
RIGHT = "def f(x):\n    return x + 1\n"


def fenced(program: str, language: str = "python") -> str:
    return f"Like this:\n```{language}\n{program}\n```\nDone."


def judge(response: str, partial: bool = False, **columns: object) -> float:
    return Code(partial=partial, limits=LIMITS).score_item(Item(prompt="", response=response, columns=columns))


HUMAN_EVAL = "def check(candidate):\n    assert candidate(1) == 2\n"


@pytest.mark.parametrize(
    "columns",
    [
        {"tests": "assert f(1) == 2"},
        {"tests": None, "test_list": ["assert f(1) == 2", "assert f(2) == 3"]},
        {"test": HUMAN_EVAL, "entry_point": "f"},
    ],
)
def test_a_program_is_run_against_the_tests_in_the_fields_usual_columns(columns: dict[str, object]) -> None:
    assert judge(fenced(RIGHT), **columns) == 1.0
    assert judge(fenced("def f(x):\n    return x\n"), **columns) == 0.0
    assert judge("no program", **columns) == 0.0


@pytest.mark.parametrize(
    "cases",
    [
        [{"input": "1\n", "output": "2\n"}, {"input": "5", "output": "6"}],
        {"inputs": ["1\n", "5\n"], "outputs": ["2", "6"]},
        json.dumps({"inputs": ["1\n", "5\n"], "outputs": ["2", "6"]}),
    ],
)
def test_a_program_is_run_on_inputs_and_its_output_compared(cases: object) -> None:
    assert judge(fenced("print(int(input()) + 1)\nraise SystemExit(0)"), tests=cases) == 1.0
    assert judge(fenced("print(2, ' ')\n"), tests=cases) == 0.0
    assert judge(fenced("print(2)\n"), tests=cases, partial=True) == 0.5
    assert judge(fenced("print(int(input()) + 1)\nraise SystemExit(1)"), tests=cases) == 0.0


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(0)",
        "import os; os._exit(0)",
        "import os; os.kill(os.getpid(), 9)",
        "def f(x): raise SystemExit(0)",
        "def f(x):\n    import os; os._exit(0)",
        "import ctypes; ctypes.string_at(0)",
        "x = bytearray(2**31)",
        "open('big', 'wb').write(bytes(2**21))",
        "print('x' * 2**21, flush=True)",
        "def f(x) return",
        "f = None",
        "def f(x): return f(x)",
    ],
)
def test_a_program_that_ends_early_or_takes_too_much_fails_its_test(program: str) -> None:
    assert judge(fenced(program), tests="assert f(1) == 2") == 0.0
    assert judge(fenced(RIGHT), tests="assert f(1) == 2") == 1.0


def test_a_program_that_does_not_end_fails_in_time_and_leaves_nothing_behind() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    program = "import os\nfor _ in range(5):\n    if os.fork() == 0: break\nwhile True: pass"
    assert not passes(program, ProgramTest(source=""), SandboxLimits(seconds=1))
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert [child for child in left if child.status() != psutil.STATUS_ZOMBIE] == []


def test_a_program_sees_neither_the_environment_nor_the_folder_of_this_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.chdir(tmp_path)
    program = "import os\ndef f(): return sorted(os.environ), os.getcwd(), os.listdir()"
    tests = f"names, folder, files = f()\nassert 'OPENAI_API_KEY' not in names\nassert folder != {str(tmp_path)!r}"
    assert passes(program, ProgramTest(source=tests), LIMITS)


def _namespaces_allowed() -> bool:
    return passes("import os", ProgramTest(source="assert os.getpid() == 1"), LIMITS)


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_a_program_has_no_network_where_the_system_allows_that() -> None:
    if not _namespaces_allowed():
        pytest.skip("this system does not let ordinary users have namespaces")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        program = f"import socket\nsocket.create_connection({server.getsockname()!r}, 5)"
        assert not passes(program, ProgramTest(source=""), LIMITS)
        socket.create_connection(server.getsockname(), 5).close()


@pytest.mark.parametrize(
    ("text", "block"),
    [
        (fenced("a = 1"), "a = 1\n"),
        (fenced("a = 1") + fenced("b = 2", ""), "b = 2\n"),
        (fenced("a = 1", "Python") + fenced("int a;", "cpp"), "a = 1\n"),
        ("```py\nx\n", None),
        ("  ```python title\n  x\n  ```", "  x\n"),
        ("no code", None),
        ("", None),
    ],
)
def test_the_last_python_block_of(text: str, block: str | None) -> None:
    assert last_python_block(text) == block


@pytest.mark.parametrize(
    "value",
    [None, "", [], [None], 3, {"inputs": ["1"]}, {"inputs": ["1"], "outputs": []}, [{"input": 1, "output": "2"}]],
)
def test_a_prompt_without_usable_tests_fails_by_name(value: object) -> None:
    with pytest.raises(RewardError, match="test"):
        read_tests({"tests": value}, ["tests"])


def test_text_that_only_looks_like_json_is_a_program() -> None:
    assert read_tests({"tests": "[f(x) for x in 'ab']"}, ["tests"]) == [ProgramTest(source="[f(x) for x in 'ab']")]


def test_a_job_scores_programs_and_keeps_how_many_tests_passed(response_table: MakeTable, scorer: MakeScorer) -> None:
    job = scorer({"type": "code", "partial": True, "tests_column": "checks", "concurrency": 2})
    columns = [{"checks": ["assert f(1) == 2", "assert f(2) == 4"]}, {"checks": None}]
    table = job.score_table(response_table([[fenced(RIGHT), "none"], [fenced(RIGHT)]], columns))
    assert table["reward"].to_pylist() == [0.5, 0.0, None]
    assert table["reward_error"][2].as_py() == "code: this prompt has no tests in checks"
    assert parts_of(table["reward_parts"][0].as_py()) == {"code": 0.5, "code/tests": 2.0, "code/passed": 1.0}
    with pytest.raises(
        JobError, match=r"rewards\[0\] \(code\) needs a column of tests \(checks\); the prompts have tests"
    ):
        job.check(["tests"])
