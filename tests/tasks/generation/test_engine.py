"""Engine processes: many callers, one batch; and what is left when someone dies."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from builders import VOCAB_SIZE, byte_tokenizer, save_policy
from engine_builders import expected, groups
from transformers import LlamaConfig, LlamaForCausalLM

from rollmill.errors import EngineDiedError, JobError, PolicyError
from rollmill.tasks.generation.config import EngineConfig, PolicyConfig
from rollmill.tasks.generation.devices import engine_devices, threads_per_engine
from rollmill.tasks.generation.engine import Engines, start_engines
from rollmill.tasks.generation.packed_weights import pack_weights
from rollmill.tasks.generation.scheduler import InferenceScheduler


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def engines(policy: Path) -> Iterator[Engines]:
    with start(policy) as running:
        yield running


def start(policy: Path, **settings: object) -> Engines:
    engine = EngineConfig.model_validate({"devices": "cpu", "max_batch_size": 8, "max_seq_len": 512, **settings})
    return start_engines(PolicyConfig(model=str(policy), dtype="float32"), engine)


def engine_pids(parent: int | None = None) -> list[int]:
    children = psutil.Process(parent).children(recursive=True)
    return [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]


def wait_until(condition: object, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        threading.Event().wait(0.02)


def test_many_threads_get_the_answers_that_the_scheduler_alone_gives(engines: Engines) -> None:
    batches = [groups(5, first=10 * number) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(engines.generate, batches))
    assert answers == [expected(batch) for batch in batches]


def test_progress_adds_up_to_every_row_and_token(engines: Engines) -> None:
    seen: list[tuple[int, int]] = []
    answers = engines.generate(groups(6), lambda rows, tokens: seen.append((rows, tokens)))
    num_tokens = sum(len(completion.token_ids) for group in answers for completion in group.completions)
    assert [sum(column) for column in zip(*seen, strict=True)] == [12, num_tokens]


def test_works_in_progress_at_once_share_the_time_in_which_the_engine_samples(engines: Engines) -> None:
    batches = [groups(5, first=10 * number) for number in range(3)]
    begin = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(engines.answer, batches))
    assert 0 < sum(each.seconds for each in done) <= time.monotonic() - begin
    assert min(each.seconds for each in done) > 0
    assert {(each.device, each.gpu_share) for each in done} == {("cpu", 1.0)}


def test_no_groups_give_no_answers(engines: Engines) -> None:
    assert engines.generate([]) == []


def test_a_killed_engine_raises_in_the_caller_and_the_next_call_gets_a_new_one(policy: Path) -> None:
    asked = groups(4, max_tokens=400)
    with start(policy) as engines, ThreadPoolExecutor(1) as pool:
        progressed = threading.Event()
        answer = pool.submit(engines.generate, asked, lambda *_: progressed.set())
        assert progressed.wait(60)
        for pid in engine_pids():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineDiedError, match=r"ended with exit code -9"):
            answer.result(60)
        assert engines.generate(asked) == expected(asked)


def test_an_engine_that_does_not_answer_in_time_is_killed(policy: Path) -> None:
    with start(policy, seconds_per_shard=60) as engines:
        engines.generate(groups(1))
        (pid,) = [pid for pid in engine_pids() if pid in {process.pid for process in engines._slots if process}]
        engines._seconds_per_work = 0.5
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EngineDiedError, match=r"did not answer within 0.5 s"):
            engines.generate(groups(1))
        assert not psutil.pid_exists(pid)


def test_closing_the_engines_leaves_no_process_and_refuses_more_work(policy: Path) -> None:
    with start(policy) as engines:
        engines.generate(groups(1))
        pids = [process.pid for process in engines._slots if process]
    assert pids
    assert not any(psutil.pid_exists(pid) for pid in pids if pid)
    with pytest.raises(EngineDiedError, match="closed"):
        engines.generate(groups(1))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_engine_outlives_its_parent(policy: Path, how: signal.Signals) -> None:
    script = textwrap.dedent("""
        import sys
        from rollmill.tasks.generation.config import EngineConfig, PolicyConfig
        from rollmill.tasks.generation.engine import start_engines
        from rollmill.tasks.generation.types import PromptGroup, SamplingParams
        if __name__ == "__main__":
            engine = EngineConfig(devices="cpu", max_batch_size=4, max_seq_len=512)
            with start_engines(PolicyConfig(model=sys.argv[1]), engine) as engines:
                sampling = SamplingParams(max_tokens=500, temperature=5.0)
                work = [PromptGroup(key=str(n), input_ids=[n], seeds=[n], sampling=sampling) for n in range(200)]
                engines.generate(work, lambda rows, tokens: print("sampling", flush=True))
    """)
    path = policy / "parent.py"
    path.write_text(script)
    with subprocess.Popen([sys.executable, str(path), str(policy)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "sampling\n"
        pids = engine_pids(parent.pid)
        assert pids
        parent.send_signal(how)
        parent.wait(10)
        wait_until(lambda: not any(map(_is_running, pids)), 5, "the engine to end")


def _is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_policy_that_cannot_be_loaded_is_reported_as_such(tmp_path: Path) -> None:
    with start(tmp_path / "nothing here") as engines, pytest.raises(PolicyError, match="nothing here"):
        engines.generate(groups(1))


def test_work_spreads_over_engines_and_answers_stay_the_same(policy: Path) -> None:
    batches = [groups(3, first=10 * number) for number in range(6)]
    with start(policy, devices="cpu:2") as engines, ThreadPoolExecutor(6) as pool:
        assert list(pool.map(engines.generate, batches)) == [expected(batch) for batch in batches]
        assert len({process.pid for process in engines._slots if process}) == 2


def limit_memory(pid: int, more: int) -> None:
    """Let a process grow by no more than so many bytes from here on."""
    size = psutil.Process(pid).memory_info().vms
    resource.prlimit(pid, resource.RLIMIT_AS, (size + more, size + more))


def test_memory_that_runs_out_halves_the_batch_once_and_changes_no_answer(tmp_path: Path) -> None:
    lines: list[str] = []
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=512)).eval()
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    engine = EngineConfig(devices="cpu", max_batch_size=1024, max_seq_len=512)
    asked = [
        replace(group, seeds=list(range(place, place + 64))) for place, group in enumerate(groups(16, max_tokens=4))
    ]
    with start_engines(
        PolicyConfig(model=str(tmp_path), dtype="float32"), engine, on_log=lambda _, line: lines.append(line)
    ) as engines:
        engines.generate(groups(1))
        (pid,) = [process.pid for process in engines._slots if process]
        assert pid is not None
        limit_memory(pid, 200_000_000)  # the rows' keys and values take 268 MB, half of them 134 MB
        answers = engines.generate(asked)
    assert any("out of memory with 1024 answers at once; going on with 512" in line for line in lines)
    assert any("loaded" in line for line in lines)
    pack_weights(model)
    alone = InferenceScheduler(model, byte_tokenizer(), max_batch_size=64, max_seq_len=512)
    expected_answers = {group.key: group for group in alone.stream(asked)}
    assert answers == [expected_answers[group.key] for group in asked]


def test_memory_that_runs_out_again_is_a_clear_error(policy: Path) -> None:
    asked = [replace(group, seeds=list(range(2048))) for group in groups(1, max_tokens=400)]
    engine = EngineConfig(devices="cpu", max_batch_size=2048, max_seq_len=512)
    with start_engines(PolicyConfig(model=str(policy), dtype="float32"), engine) as engines:
        engines.generate(groups(1))
        (pid,) = [process.pid for process in engines._slots if process]
        assert pid is not None
        limit_memory(pid, 1_000_000)
        with pytest.raises(
            EngineDiedError, match=r"out of memory with 1024 answers at once: lower engine.max_batch_size"
        ):
            engines.generate(asked)


def test_devices_are_counted_without_guessing() -> None:
    assert engine_devices("cpu") == ["cpu"]
    assert engine_devices("cpu:3") == ["cpu"] * 3
    with pytest.raises(JobError, match=r"cuda:97 asks for a GPU that is not there"):
        engine_devices("cuda:97")
    assert threads_per_engine(1000) == 1
