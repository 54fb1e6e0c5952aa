"""Engines as Ray actors: the answers of the scheduler alone, whatever becomes of actors, nodes and drivers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from builders import save_policy
from engine_builders import expected, groups
from ray_builders import RayNodes, engine_actors, is_running, wait_until

from rollmill.errors import EngineDiedError, GenerationError, PolicyError
from rollmill.tasks.generation.config import EngineConfig, PolicyConfig
from rollmill.tasks.generation.engine import Engines, start_engines
from rollmill.tasks.generation.runner_config import RayRunner

pytestmark = pytest.mark.slow

LONG = 400
"""Tokens of answers that are still in progress when something happens to their engine."""


class RunLog:
    """What the engines said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, level: int, line: str) -> None:
        self.lines.append(line)

    def count(self, text: str) -> int:
        return sum(text in line for line in self.lines)


def start(policy: Path, nodes: RayNodes, log: RunLog | None = None, seconds: float = 100, **runner: object) -> Engines:
    engine = EngineConfig(max_batch_size=8, max_seq_len=512, seconds_per_shard=seconds)
    where = RayRunner.model_validate({"type": "ray", "address": nodes.address, **runner})
    return start_engines(PolicyConfig(model=str(policy), dtype="float32"), engine, where, on_log=log or RunLog())


def test_work_spreads_over_the_nodes_stays_on_warm_engines_and_gets_the_schedulers_answers(
    policy: Path, nodes: RayNodes
) -> None:
    nodes.add()
    nodes.add()
    log = RunLog()
    batches = [groups(5, first=10 * number) for number in range(6)]
    with start(policy, nodes, log) as engines, ThreadPoolExecutor(6) as pool:
        assert engines.num_engines == 2
        assert list(pool.map(engines.generate, batches)) == [expected(batch) for batch in batches]
        actors = engine_actors()
        assert list(pool.map(engines.generate, batches)) == [expected(batch) for batch in batches]
        assert {actor.pid for actor in engine_actors()} == {actor.pid for actor in actors}
        assert len(actors) == 2
    assert log.count("loaded") == 2
    assert log.count("on cpu as torch.float32") == 2
    wait_until(lambda: not any(map(is_running, actors)), 5, "the actors to end")


def test_work_that_comes_later_shares_the_batch_of_work_in_progress(policy: Path, nodes: RayNodes) -> None:
    nodes.add()
    with start(policy, nodes) as engines, ThreadPoolExecutor(1) as pool:
        begun = threading.Event()
        long = pool.submit(engines.generate, groups(3, max_tokens=LONG), lambda *_: begun.set())
        assert begun.wait(60)
        assert engines.generate(groups(1, first=100)) == expected(groups(1, first=100))
        assert not long.done()
        assert long.result(60) == expected(groups(3, max_tokens=LONG))


def test_progress_adds_up_to_every_row_and_token(policy: Path, nodes: RayNodes) -> None:
    nodes.add()
    seen: list[tuple[int, int]] = []
    with start(policy, nodes) as engines:
        answers = engines.generate(groups(6), lambda rows, tokens: seen.append((rows, tokens)))
    num_tokens = sum(len(completion.token_ids) for group in answers for completion in group.completions)
    assert [sum(column) for column in zip(*seen, strict=True)] == [12, num_tokens]


def test_a_killed_actor_raises_in_the_caller_and_the_next_call_gets_a_new_one(policy: Path, nodes: RayNodes) -> None:
    nodes.add()
    asked = groups(4, max_tokens=LONG)
    with start(policy, nodes) as engines, ThreadPoolExecutor(1) as pool:
        begun = threading.Event()
        answer = pool.submit(engines.generate, asked, lambda *_: begun.set())
        assert begun.wait(60)
        (actor,) = engine_actors()
        actor.kill()
        with pytest.raises(
            EngineDiedError, match=rf"engine on .* pid {actor.pid}\) ended: its worker process has died"
        ):
            answer.result(60)
        assert engines.generate(asked) == expected(asked)


def test_an_actor_that_hangs_is_killed_at_the_deadline_and_replaced(policy: Path, nodes: RayNodes) -> None:
    nodes.add()
    with start(policy, nodes, seconds=30) as engines:
        engines.generate(groups(1))
        (actor,) = engine_actors()
        engines._seconds_per_work = 0.5
        actor.send_signal(signal.SIGSTOP)
        with pytest.raises(EngineDiedError, match=r"did not answer within 0.5 s and was killed"):
            engines.generate(groups(1))
        engines._seconds_per_work = 60
        assert engines.generate(groups(2)) == expected(groups(2))  # in the room that the hung one has left
        assert not is_running(actor)


def test_a_cluster_that_grows_gets_more_engines(policy: Path, nodes: RayNodes) -> None:
    nodes.add()
    log = RunLog()
    batches = [groups(4, first=10 * number, max_tokens=LONG) for number in range(6)]
    with start(policy, nodes, log, num_engines=2) as engines, ThreadPoolExecutor(6) as pool:
        begun = threading.Event()
        answers = [pool.submit(engines.generate, batch, lambda *_: begun.set()) for batch in batches]
        assert begun.wait(60)
        assert len(engine_actors()) == 1
        second = nodes.add()
        assert [answer.result(100) for answer in answers] == [expected(batch) for batch in batches]
        assert len(engine_actors(second)) == 1
    assert log.count("loaded") == 2


def test_a_cluster_without_room_is_waited_for_only_so_long(policy: Path, nodes: RayNodes) -> None:
    with (
        start(policy, nodes, num_engines=1, seconds_to_place=1.5) as engines,
        pytest.raises(GenerationError, match=r"no node of the Ray cluster had 1 GPU and 1 CPU free .* within 1.5 s"),
    ):
        engines.generate(groups(1))


def test_a_node_with_other_weights_refuses_the_run(nodes: RayNodes, tmp_path: Path) -> None:
    nodes.add()
    policy = save_policy(tmp_path / "policy")
    with start(policy, nodes) as engines:
        save_policy(policy, seed=1)
        with pytest.raises(PolicyError, match=r"engine on .*: policy.model .* are not those that the run began with"):
            engines.generate(groups(1))


def test_engines_on_cpus_are_asked_for_by_cores_and_names(policy: Path, nodes: RayNodes) -> None:
    nodes.add(num_cpus=4, num_gpus=0, resources={"roomy": 2})
    needs = {"num_gpus": 0, "num_cpus": 1, "resources": {"roomy": 1}}
    with start(policy, nodes, **needs) as engines:
        assert engines.num_engines == 2
        assert engines.generate(groups(2)) == expected(groups(2))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_actor_outlives_its_driver(policy: Path, nodes: RayNodes, how: signal.Signals, tmp_path: Path) -> None:
    nodes.add()
    script = tmp_path / "driver.py"
    script.write_text(
        textwrap.dedent("""
            import sys
            from rollmill.tasks.generation.config import EngineConfig, PolicyConfig
            from rollmill.tasks.generation.engine import start_engines
            from rollmill.tasks.generation.runner_config import RayRunner
            from rollmill.tasks.generation.types import PromptGroup, SamplingParams
            engine = EngineConfig(max_batch_size=4, max_seq_len=512)
            runner = RayRunner(type="ray", address=sys.argv[2])
            with start_engines(PolicyConfig(model=sys.argv[1]), engine, runner) as engines:
                sampling = SamplingParams(max_tokens=500, temperature=5.0)
                work = [PromptGroup(key=str(n), input_ids=[n], seeds=[n], sampling=sampling) for n in range(200)]
                engines.generate(work, lambda rows, tokens: print("sampling", flush=True))
        """)
    )
    command = [sys.executable, str(script), str(policy), nodes.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ.copy()) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "sampling\n"
        actors = engine_actors()
        assert len(actors) == 1
        driver.send_signal(how)
        driver.communicate(timeout=30)
        assert driver.returncode == -how
        wait_until(lambda: not any(map(is_running, actors)), 8, "the actor to end")
