"""Engine processes that run vLLM: the same contract as rollmill's own scheduler, checked against transformers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from vllm_builders import ENGINE, MAX_SEQ_LEN, POLICY

from rollmill.errors import EngineDiedError
from rollmill.tasks.generation.audit import StoredAnswer, audit
from rollmill.tasks.generation.config import EngineConfig, PolicyConfig
from rollmill.tasks.generation.engine import Engines, start_engines
from rollmill.tasks.generation.model_setup import stop_token_ids
from rollmill.tasks.generation.scheduler import InferenceScheduler
from rollmill.tasks.generation.seeds import row_seed
from rollmill.tasks.generation.types import FINISH_LENGTH, FINISH_STOP, FinishedGroup, PromptGroup, SamplingParams

Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]

PROMPTS = ("The capital of France is", "2 + 2 =", "Once upon a time", "def add(a, b):")
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with start_engines(PolicyConfig(model=POLICY, dtype="float32"), EngineConfig.model_validate(ENGINE)) as running:
        yield running


def groups(loaded: Loaded, sampling: SamplingParams, job_seed: int = 0) -> list[PromptGroup]:
    return [
        PromptGroup(
            key=prompt,
            input_ids=list(loaded[1](prompt)["input_ids"]),
            seeds=[row_seed(job_seed, prompt, sample) for sample in range(4)],
            sampling=sampling,
        )
        for prompt in PROMPTS
    ]


def stored(asked: list[PromptGroup], finished: list[FinishedGroup]) -> list[StoredAnswer]:
    return [
        StoredAnswer(
            name=group.key,
            prompt_token_ids=group.input_ids,
            response_token_ids=completion.token_ids,
            logprobs=completion.logprobs,
        )
        for group, answer in zip(asked, finished, strict=True)
        for completion in answer.completions
    ]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=32),
        SamplingParams(max_tokens=32, temperature=0.7, top_p=0.9, top_k=20),
        SamplingParams(max_tokens=32, temperature=1.5, top_k=5),
        SamplingParams(max_tokens=32, frequency_penalty=1.0, rep_window=32),
        SamplingParams(max_tokens=8, temperature=0),
    ],
)
def test_logprobs_are_those_that_teacher_forcing_finds(
    engines: Engines, loaded: Loaded, sampling: SamplingParams
) -> None:
    asked = groups(loaded, sampling)
    found = audit(loaded[0], stored(asked, engines.generate(asked)), sampling)
    assert found.is_within(TOLERANCE), found
    assert found.num_tokens > 100


def test_greedy_answers_are_those_of_our_own_scheduler(engines: Engines, loaded: Loaded) -> None:
    asked = groups(loaded, SamplingParams(max_tokens=24, temperature=0))
    ours = {group.key: group for group in InferenceScheduler(*loaded, max_seq_len=MAX_SEQ_LEN).stream(asked)}
    assert engines.generate(asked) == [ours[group.key] for group in asked]


def test_an_answer_ends_with_its_stop_token_or_at_its_limit(engines: Engines, loaded: Loaded) -> None:
    stop_ids = stop_token_ids(*loaded)
    completions = [
        completion
        for group in engines.generate(groups(loaded, SamplingParams(max_tokens=64, temperature=0.6)))
        for completion in group.completions
    ]
    for completion in completions:
        stopped = completion.token_ids[-1] in stop_ids
        assert completion.finish_reason == (FINISH_STOP if stopped else FINISH_LENGTH)
        assert stopped or len(completion.token_ids) == 64
        assert stop_ids.isdisjoint(completion.token_ids[:-1])
    assert {completion.finish_reason for completion in completions} == {FINISH_STOP, FINISH_LENGTH}


def test_seeds_decide_the_answers(engines: Engines, loaded: Loaded) -> None:
    sampling = SamplingParams(max_tokens=16)
    first = engines.generate(groups(loaded, sampling))
    assert engines.generate(groups(loaded, sampling)) == first
    assert engines.generate(groups(loaded, sampling, job_seed=1)) != first
    assert len({tuple(completion.token_ids) for completion in first[0].completions}) == 4


def test_a_prompt_that_does_not_fit_is_an_error_in_its_own_place(engines: Engines, loaded: Loaded) -> None:
    asked = groups(loaded, SamplingParams(max_tokens=8))
    too_long = PromptGroup(key="long", input_ids=[5] * MAX_SEQ_LEN, seeds=[1, 2], sampling=SamplingParams())
    strange = PromptGroup(key="strange", input_ids=[10**6], seeds=[1], sampling=SamplingParams())
    just_fits = PromptGroup(key="fits", input_ids=[5] * (MAX_SEQ_LEN - 3), seeds=[1], sampling=SamplingParams())
    answers = engines.generate([asked[0], too_long, strange, just_fits, *asked[1:]])
    assert [group.key for group in answers] == [PROMPTS[0], "long", "strange", "fits", *PROMPTS[1:]]
    assert [completion.finish_reason for completion in answers[1].completions] == ["error", "error"]
    assert "leaves no room for an answer within 256" in str(answers[1].completions[0].error)
    assert "outside the model's vocabulary" in str(answers[2].completions[0].error)
    assert len(answers[3].completions[0].token_ids) <= 3
    assert all(completion.token_ids for group in (answers[0], *answers[4:]) for completion in group.completions)


def test_progress_adds_up_to_every_row_and_token(engines: Engines, loaded: Loaded) -> None:
    seen: list[tuple[int, int]] = []
    answers = engines.generate(
        groups(loaded, SamplingParams(max_tokens=8)), lambda rows, tokens: seen.append((rows, tokens))
    )
    num_tokens = sum(len(completion.token_ids) for group in answers for completion in group.completions)
    assert [sum(column) for column in zip(*seen, strict=True)] == [16, num_tokens]


def test_a_killed_engine_leaves_no_process_and_the_next_call_gets_a_new_one(engines: Engines, loaded: Loaded) -> None:
    asked = groups(loaded, SamplingParams(max_tokens=128))
    with ThreadPoolExecutor(1) as pool:
        begun = threading.Event()
        answer = pool.submit(engines.generate, [*groups(loaded, SamplingParams(max_tokens=1)), *asked])
        engines.generate(groups(loaded, SamplingParams(max_tokens=1)), lambda *_: begun.set())
        assert begun.wait(60)
        (pid,) = [process.pid for process in engines._slots if process]
        engine = psutil.Process(pid)
        below = engine.children(recursive=True)
        engine.kill()
        with pytest.raises(EngineDiedError, match=r"ended with exit code -9"):
            answer.result(60)
    psutil.wait_procs(below, timeout=5)
    assert not any(child.is_running() for child in below)
    assert [group.key for group in engines.generate(asked)] == list(PROMPTS)
