"""Where engines may be asked to run, and what is said when they cannot."""

from __future__ import annotations

import socket
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from rollmill.errors import JobError
from rollmill.tasks.generation.config import EngineConfig, PolicyConfig
from rollmill.tasks.generation.local_places import LocalPlaces
from rollmill.tasks.generation.ray_cluster import room_on
from rollmill.tasks.generation.ray_engine import cause_of_death
from rollmill.tasks.generation.runner_config import LocalRunner, RayRunner, RunnerConfig
from rollmill.tasks.generation.runners import check_runner

RAY = RayRunner(type="ray")


def test_a_runner_is_local_or_ray_and_nothing_else() -> None:
    runner = TypeAdapter[LocalRunner | RayRunner](RunnerConfig)
    assert runner.validate_python({"type": "local"}) == LocalRunner(type="local")
    assert runner.validate_python({"type": "ray", "num_engines": "auto"}) == RAY
    for wrong in ({"type": "slurm"}, {"type": "local", "address": "auto"}, {"type": "ray", "num_gpus": 2}, {}):
        with pytest.raises(ValidationError):
            runner.validate_python(wrong)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_gpus": 0, "num_cpus": 0}, "must take something"),
        ({"resources": {"GPU": 1}}, "GPU is said by num_gpus"),
        ({"resources": {"roomy": 0}}, "greater than 0"),
        ({"num_engines": 0}, "greater than or equal to 1"),
        ({"address": "ray://head:10001"}, "should match pattern"),
    ],
)
def test_what_no_cluster_could_give_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RayRunner.model_validate({"type": "ray", **fields})


@given(st.integers(0, 16), st.integers(0, 64), st.sampled_from([0.1, 0.25, 0.3, 0.5, 1.0]), st.integers(1, 8))
def test_a_node_has_room_for_as_many_engines_as_fit_of_everything(
    gpus: int, cpus: int, num_gpus: float, num_cpus: int
) -> None:
    room = room_on({"GPU": gpus, "CPU": cpus, "memory": 1e9}, {"GPU": num_gpus, "CPU": num_cpus})
    assert room * num_gpus <= gpus + 1e-3
    assert room * num_cpus <= cpus
    assert (room + 1) * num_gpus > gpus + 1e-3 or (room + 1) * num_cpus > cpus


def test_a_node_without_a_resource_has_no_room() -> None:
    assert room_on({"CPU": 64}, {"CPU": 1, "GPU": 1}) == 0


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: RayEngine\n\tpid: 12\n"
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
            "Worker unexpectedly exits with a connection error code 2.",
            "its worker process has died",
        ),
        (
            "The actor died.\nThe actor is dead because it was killed by `ray.kill`.\nThe actor never ran.",
            "it was killed by `ray.kill`",
        ),
        ("The actor 92 is unavailable: Socket closed.", "The actor 92 is unavailable: Socket closed."),
        ("Traceback:\n  File x\nImportError: No module  'rollmill'\n", "ImportError: No module 'rollmill'"),
    ],
)
def test_one_line_is_left_of_why_an_actor_died(said: str, cause: str) -> None:
    assert cause_of_death(said) == cause


def test_a_job_for_ray_without_ray_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(JobError, match=r"^runner.type: ray is not installed .* pip install 'rollmill\[ray\]'[^\n]*$"):
        check_runner(RAY, EngineConfig())


def test_an_address_where_no_cluster_answers_is_refused_at_once() -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nothing else gets the port, and nothing answers
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(
            JobError, match=rf"^runner.address {address}: no Ray cluster answers [^\n]*ray start[^\n]*$"
        ):
            check_runner(RayRunner(type="ray", address=address), EngineConfig())
    assert time.monotonic() - begin < 10


def test_devices_of_one_machine_are_not_for_a_cluster() -> None:
    with pytest.raises(JobError, match=r"engine.devices: cuda:0,1 names devices of one machine"):
        check_runner(RAY, EngineConfig(devices="cuda:0,1"))


def test_an_address_of_another_kind_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(JobError, match=r"RAY_ADDRESS is ray://head:10001"):
        check_runner(RAY, EngineConfig())


def test_local_places_are_the_jobs_devices() -> None:
    assert LocalPlaces(PolicyConfig(model="any"), EngineConfig(devices="cpu:3")).num_places == 3
