"""Running commands in this process, and a policy that no command may load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from flow_builders import unloadable_policy, write_prompts

from rollmill.cli import main


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command printed and how it ended."""

    status: int
    out: str
    err: str


RunCommand = Callable[..., Ended]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Run `rollmill` with the given arguments."""

    def run(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["rollmill", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Ended(ended.value.code if isinstance(ended.value.code, int) else 1, printed.out, printed.err)

    return run


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy whose weights nobody can load, so that a command that answers proves that it loaded none."""
    return unloadable_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl")
