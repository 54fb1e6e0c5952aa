"""Builders of what the rewards room works on."""

import itertools
import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from rollmill.storage.schema import RESPONSE_SCHEMA, REWARD_PENDING
from rollmill.tasks.rewards.config import RewardConfigs
from rollmill.tasks.rewards.scoring import Scorer, build_rewards

NAMES = itertools.count()


@pytest.fixture(scope="session")
def response_table() -> Callable[..., pa.Table]:
    """Make rows of RESPONSE_SCHEMA from the answers to each prompt; an answer of None is one that failed."""

    def make(answers: Sequence[Sequence[str | None]], columns: Sequence[dict[str, Any]] | None = None) -> pa.Table:
        rows = [
            row(b, g, text, columns[b] if columns else {})
            for b, group in enumerate(answers)
            for g, text in enumerate(group)
        ]
        return pa.Table.from_pylist(rows, schema=RESPONSE_SCHEMA)

    return make


def row(b: int, g: int, text: str | None, columns: dict[str, Any]) -> dict[str, Any]:
    ids = list((text or "").encode())
    return {
        "run_id": "run",
        "prompt_id": f"p{b}",
        "sample_index": g,
        "policy_version": 3,
        "seed": 2**64 - 1 - g,
        "prompt_text": f"prompt {b}",
        "response_text": text or "",
        "prompt_token_ids": [b],
        "response_token_ids": ids,
        "logprobs": [-0.5] * len(ids),
        "finish_reason": "error" if text is None else "stop",
        "error": "it did not fit" if text is None else None,
        "reward": None,
        "reward_status": REWARD_PENDING,
        "reward_error": None,
        "reward_parts": None,
        "metadata": json.dumps(columns),
    }


@pytest.fixture(scope="session")
def scorer() -> Callable[..., Scorer]:
    """Make the scorer of some rewards, each given as a mapping as in a job file."""

    def make(*rewards: dict[str, Any]) -> Scorer:
        return build_rewards(TypeAdapter(RewardConfigs).validate_python(list(rewards)))

    return make


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Write a module of a user's own, which can be imported while the test runs, and return its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def write(source: str) -> str:
        name = f"user_rewards_{next(NAMES)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        made.append(name)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)
