"""One Prefect server for all tests of flows, a policy, prompts, and a finished run to begin from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import save_policy
from flow_builders import job_of, write_prompts

from rollmill.flows.job import RolloutJob
from rollmill.flows.report import RunReport
from rollmill.flows.rollout import rollout
from rollmill.storage.store import RolloutStore


@pytest.fixture(scope="session", autouse=True)
def _prefect(prefect: None) -> None:
    """Every test of flows runs on the session's server."""


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl")


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that was never interrupted, in a store of its own."""

    job: RolloutJob
    report: RunReport

    @property
    def folder(self) -> Path:
        return Path(self.job.store)

    @property
    def store(self) -> RolloutStore:
        return RolloutStore(self.job.store)


@pytest.fixture(scope="session")
def unbroken(policy: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A finished run that no test changes."""
    job = job_of(policy, prompts, str(tmp_path_factory.mktemp("unbroken") / "store"))
    return FinishedRun(job, rollout(job))


@pytest.fixture
def finished(unbroken: FinishedRun, tmp_path: Path) -> FinishedRun:
    """A finished run for this test alone."""
    folder = shutil.copytree(unbroken.folder, tmp_path / "store")
    return FinishedRun(unbroken.job.model_copy(update={"store": str(folder)}), unbroken.report)
