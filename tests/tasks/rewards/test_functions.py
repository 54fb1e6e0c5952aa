"""Users' own functions and classes work as they are, and a wrong path is one clear line."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from store_builders import parts_of

from rollmill.errors import JobError
from rollmill.tasks.rewards.scoring import Scorer

Write = Callable[[str], str]
MakeTable = Callable[..., pa.Table]
MakeScorer = Callable[..., Scorer]


def rewards(table: pa.Table) -> list[float | None]:
    values: list[float | None] = table["reward"].to_pylist()
    return values


def test_a_trl_function_gets_flat_lists_and_may_return_none(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer
) -> None:
    name = user_module(
        """
        def accuracy(prompts, completions, answer, **kwargs):
            assert len(prompts) == len(completions) == len(answer) == len(kwargs["level"])
            return [None if c == "?" else float(c == a) for c, a in zip(completions, answer)]
        """
    )
    columns = [{"answer": "a", "level": 1}, {"answer": "b", "level": 2}]
    table = scorer({"type": "function", "path": f"{name}:accuracy"}).score_table(
        response_table([["a", "?", "b"], ["b", "a", "b"]], columns)
    )
    assert rewards(table) == [1.0, None, 0.0, 1.0, 0.0, 1.0]
    assert table["reward_status"].to_pylist() == ["ok", "failed", "ok", "ok", "ok", "ok"]
    assert table["reward_error"][1].as_py() == "accuracy: the reward returned None"


def test_a_trl_function_may_be_async_and_want_messages_and_token_ids(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer
) -> None:
    name = user_module(
        """
        import asyncio

        loops = set()

        async def length(completions, completion_ids, trainer_state, **kwargs):
            loops.add(id(asyncio.get_running_loop()))
            await asyncio.sleep(0)
            assert all(c[0]["role"] == "assistant" for c in completions)
            assert all(p[-1]["role"] == "user" for p in kwargs["prompts"])
            return [len(c[0]["content"]) + 10 * len(ids) for c, ids in zip(completions, completion_ids)]

        def loop_count(completions, **kwargs):
            return [float(len(loops))] * len(completions)
        """
    )
    job = scorer(
        {"type": "function", "path": f"{name}:length", "conversational": True, "isolated": False},
        {"type": "function", "path": f"{name}:loop_count", "weight": 0, "isolated": False},
    )
    job.score_table(response_table([["x"]]))
    table = job.score_table(response_table([["a", "bb"]]))
    assert rewards(table) == [11.0, 22.0]
    assert parts_of(table["reward_parts"][0].as_py())["loop_count"] == 1.0  # a kept async client stays on its loop


def test_a_verl_function_works_with_verls_columns(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer
) -> None:
    name = user_module(
        """
        def compute_score(data_source, solution_str, ground_truth, extra_info=None):
            assert data_source == "openai/gsm8k" and extra_info == {"split": "train", "index": 4}
            if solution_str == "raise":
                raise KeyError("solution")
            acc = solution_str == ground_truth
            return {"score": 1.0 if acc else -1.0, "acc": acc, "pred": solution_str, "entropy": float("nan")}

        async def compute_score_async(data_source, solution_str, ground_truth, extra_info, scale):
            return (scale if solution_str == ground_truth else 0.0, "unused")

        def bare(solution_str, ground_truth):
            return solution_str == ground_truth
        """
    )
    columns = {
        "data_source": "openai/gsm8k",
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "extra_info": {"split": "train", "index": 4},
    }
    job = scorer(
        {"type": "function", "path": f"{name}:compute_score"},
        {"type": "function", "path": f"{name}:compute_score_async", "options": {"scale": 3}},
        {"type": "function", "path": f"{name}:bare"},
    )
    table = job.score_table(response_table([["72", "71", "raise"]], [columns]))
    assert rewards(table) == [5.0, -1.0, None]
    assert table["reward_error"][2].as_py() == "compute_score: KeyError: 'solution'"
    assert [parts_of(row) for row in table["reward_parts"].to_pylist()] == [
        {
            "compute_score": 1.0,
            "compute_score/acc": 1.0,
            "compute_score/pred": None,
            "compute_score/entropy": None,
            "compute_score_async": 3.0,
            "bare": 1.0,
        },
        {
            "compute_score": -1.0,
            "compute_score/acc": 0.0,
            "compute_score/pred": None,
            "compute_score/entropy": None,
            "compute_score_async": 0.0,
            "bare": 0.0,
        },
        {"compute_score_async": 0.0, "bare": 0.0},
    ]
    with pytest.raises(JobError, match=r"rewards\[0\] \(compute_score\) needs one of the columns answer"):
        job.check(["question"])


def test_a_dict_without_a_score_is_a_failure(user_module: Write, response_table: MakeTable, scorer: MakeScorer) -> None:
    name = user_module("def compute_score(data_source, solution_str, ground_truth, extra_info=None): return {'acc': 1}")
    table = scorer({"type": "function", "path": f"{name}:compute_score"}).score_table(
        response_table([["a"]], [{"answer": "a"}])
    )
    assert table["reward_error"].to_pylist() == [
        "compute_score: the function returned a dict without score; it has acc"
    ]


def test_a_function_that_answers_for_fewer_items_scores_nothing_by_accident(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer
) -> None:
    name = user_module(
        """
        def short(completions, **kwargs):
            return [1.0 for c in completions if c != "lost"]

        def text(completions, **kwargs):
            return "0" * len(completions)

        def number(completions, **kwargs):
            return 1.0
        """
    )
    table = scorer({"type": "function", "path": f"{name}:short"}).score_table(
        response_table([["a", "lost"], ["b", "c"]])
    )
    assert rewards(table) == [1.0, None, 1.0, 1.0]
    assert table["reward_error"][1].as_py() == "short: the function returned 0 values for 1 answers"
    for wrong in ("text", "number"):
        table = scorer({"type": "function", "path": f"{name}:{wrong}"}).score_table(response_table([["a", "b"]]))
        assert rewards(table) == [None, None]
        assert "expected a list of 1 numbers" in table["reward_error"][0].as_py()


def test_options_reach_a_function_and_hide_a_column_of_their_name(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer
) -> None:
    name = user_module("def scaled(completions, scale=1, **kwargs): return [scale * len(c) for c in completions]")
    table = response_table([["aa"]], [{"scale": 100}])
    assert rewards(
        scorer({"type": "function", "path": f"{name}:scaled", "options": {"scale": 3}}).score_table(table)
    ) == [6.0]


MODEL = """
import torch
from rollmill.tasks.rewards.base import BaseRewardModel

class Brevity(BaseRewardModel):
    def __init__(self, most=10):
        if most < 1:
            raise ValueError("most must be at least 1")
        self.most = most

    def score(self, prompts, responses, limit):
        return torch.tensor([[float(len(t) <= min(n, self.most)) for t in g] for g, n in zip(responses, limit)])

ready = Brevity(3)
number = 5

def unrelated(a, b):
    return 0.0
"""


def test_a_reward_model_may_be_a_class_with_options_or_an_object(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer
) -> None:
    name = user_module(MODEL)
    table = response_table([["12345", "1"]], [{"limit": 8}])
    for path, options, expected in [("Brevity", {"most": 5}, [1.0, 1.0]), ("ready", {}, [0.0, 1.0])]:
        job = scorer({"type": "function", "path": f"{name}:{path}", "options": options})
        assert rewards(job.score_table(table)) == expected
        with pytest.raises(JobError, match="needs the column limit; the prompts have answer, level"):
            job.check(["answer", "level"])
        job.check(["limit"])


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("no_such_package.module:score", {}, "there is no module no_such_package"),
        ("rollmill.tasks.rewardz:score", {}, "no module rollmill.tasks.rewardz; rollmill.tasks has .*rewards"),
        ("{module}:Brevty", {}, "has no 'Brevty'; it has Brevity, unrelated$"),
        ("{module}:ready.nothing", {}, "has no 'ready.nothing'"),
        ("{module}:number", {}, "is a int; expected"),
        ("{module}:unrelated", {}, r"takes \(a, b\); expected .*completions.*solution_str.*BaseRewardModel"),
        ("{module}:ready", {"most": 1}, "takes no options"),
        ("{module}:Brevity", {"most": 0}, "options \\['most'\\] failed: ValueError: most must be at least 1"),
        ("{module}:Brevity", {"least": 0}, "TypeError.*least"),
        ("not_installed", {}, "entry point of the group rollmill.rewards; installed entry points: none"),
    ],
)
def test_a_wrong_path_is_one_clear_line(
    user_module: Write, scorer: MakeScorer, path: str, options: dict[str, int], message: str
) -> None:
    with pytest.raises(JobError, match=message) as caught:
        scorer({"type": "function", "path": path.format(module=user_module(MODEL)), "options": options})
    assert str(caught.value).startswith("rewards[0]: reward function ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_dependency", "importing .* failed: ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("raise SystemExit(1)", "importing .* failed: SystemExit: 1"),
        ("def (", "importing .* failed: SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(
    user_module: Write, scorer: MakeScorer, source: str, message: str
) -> None:
    with pytest.raises(JobError, match=message):
        scorer({"type": "function", "path": f"{user_module(source)}:score"})


def test_a_function_that_needs_more_than_verl_gives_is_refused(user_module: Write, scorer: MakeScorer) -> None:
    name = user_module("def f(data_source, solution_str, ground_truth, tokenizer): return 0.0")
    with pytest.raises(JobError, match="needs tokenizer: give it in options"):
        scorer({"type": "function", "path": f"{name}:f"})
    name = user_module("def f(data_source, solution_str, ground_truth): return 0.0")
    with pytest.raises(JobError, match="takes no option speed"):
        scorer({"type": "function", "path": f"{name}:f", "options": {"speed": 1}})


def test_a_module_in_the_current_folder_is_found(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    scorer: MakeScorer,
    response_table: MakeTable,
) -> None:
    folder = tmp_path_factory.mktemp("project")
    (folder / "beside_the_job.py").write_text("def score(completions): return [1.0] * len(completions)")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    scored = scorer({"type": "function", "path": "beside_the_job:score"}).score_table(response_table([["x"]], [{}]))
    assert scored["reward_parts"][0].as_py() == [{"name": "score", "value": 1.0}]


def test_an_async_function_may_exit_without_taking_the_others_along(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer
) -> None:
    name = user_module(
        """
        async def exits(completions, **kwargs):
            if "exit" in completions:
                raise SystemExit(9)
            return [1.0] * len(completions)
        """
    )
    job = scorer({"type": "function", "path": f"{name}:exits"})
    for _ in range(2):
        assert rewards(job.score_table(response_table([["a", "exit", "b"]]))) == [1.0, None, 1.0]


def test_four_threads_score_at_once_as_one_would(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer
) -> None:
    name = user_module("async def echo(completions, **kwargs): return [float(c.split()[-1]) for c in completions]")
    job = scorer(
        {"type": "math"},
        {"type": "last_number"},
        {"type": "function", "path": f"{name}:echo"},
        {"type": "regex", "pattern": r"(\d+)$", "group": 1},
    )
    start = threading.Barrier(4)
    tables = [response_table([[f"It is {t + g}" for g in range(6)]], [{"answer": str(t + 2)}]) for t in range(8)]
    expected = [job.score_table(table) for table in tables]

    def score_all() -> list[pa.Table]:
        start.wait()
        return [job.score_table(table) for table in tables]

    with ThreadPoolExecutor(4) as pool:
        results = [future.result() for future in [pool.submit(score_all) for _ in range(4)]]
    assert all(result == expected for result in results)
    assert rewards(expected[0])[:3] == [0.0, 1.0, 5.0]


def test_a_conversational_function_gets_the_prompts_own_messages(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer
) -> None:
    name = user_module(
        """
        def turns(prompts, completions):
            assert all(completion[0]["role"] == "assistant" for completion in completions)
            return [10 * len(prompt) + len(prompt[-1]["content"]) for prompt in prompts]
        """
    )
    job = scorer({"type": "function", "path": f"{name}:turns", "conversational": True})
    contents = {
        "p0": [{"role": "system", "content": "s"}, {"role": "user", "content": "abc"}],
        "p1": "ab",
        "p2": [1, 2],
    }
    assert rewards(job.score_table(response_table([["x"]] * 3), contents)) == [23.0, 12.0, 10.0 + len("prompt 2")]


def test_a_reward_model_may_ask_for_the_prompts_own_messages(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer
) -> None:
    name = user_module(
        """
        from rollmill.tasks.rewards.base import BaseRewardModel

        class Turns(BaseRewardModel):
            def score(self, prompts, responses, prompt_messages):
                return [[float(len(m or ())) for _ in group] for m, group in zip(prompt_messages, responses)]
        """
    )
    job = scorer({"type": "function", "path": f"{name}:Turns"})
    job.check([])
    contents = {"p0": [{"role": "system", "content": "s"}, {"role": "user", "content": "abc"}]}
    assert rewards(job.score_table(response_table([["x"], ["y"]]), contents)) == [2.0, 0.0]


def test_what_a_trl_function_logs_for_each_answer_is_kept(
    user_module: Write, response_table: MakeTable, scorer: MakeScorer
) -> None:
    name = user_module(
        """
        def score(completions, log_extra, log_metric):
            log_extra("length", [len(text) for text in completions])
            log_extra("text", completions)
            log_extra("odd", [1.0])
            log_metric("mean", 0.5)
            return [1.0] * len(completions)
        """
    )
    table = scorer({"type": "function", "path": f"{name}:score"}).score_table(response_table([["a", "bb"]]))
    assert parts_of(table["reward_parts"][1].as_py()) == {"score": 1.0, "score/length": 2.0, "score/text": None}
