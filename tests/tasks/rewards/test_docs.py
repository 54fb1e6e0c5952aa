"""The page on rewards names every kind and field, and what it shows works."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
import yaml
from pydantic import TypeAdapter

from rollmill.tasks.rewards.config import RewardConfig, RewardConfigs
from rollmill.tasks.rewards.fields import RewardFields
from rollmill.tasks.rewards.scoring import Scorer
from rollmill.tasks.row_filter import COLUMNS, RowFilter

PAGE = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text()
KINDS = {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(RewardConfig)[0])}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_is_introduced_and_has_each_of_its_fields(kind: str) -> None:
    introduction, reference = PAGE.split("## All fields")
    assert f"`{kind}`" in introduction
    section = reference.split(f"### `{kind}`\n")[1].split("\n### ")[0]
    shared = reference.split("### Every kind")[1].split("\n### ")[0]
    for name in set(KINDS[kind].model_fields) - {"type"}:
        assert f"| `{name}` |" in (shared if name in RewardFields.model_fields else section), name


def test_there_are_no_sections_of_kinds_that_do_not_exist() -> None:
    assert sorted(re.findall(r"### `(\w+)`", PAGE)) == sorted(KINDS)


def test_the_rewards_of_its_examples_can_be_built() -> None:
    examples = [yaml.safe_load(block)["rewards"] for block in blocks("yaml")]
    assert len(examples) == 2
    for rewards in examples:
        TypeAdapter(RewardConfigs).validate_python(rewards)


def test_ones_own_rewards_in_ten_lines_score(
    user_module: Callable[[str], str], response_table: Callable[..., pa.Table], scorer: Callable[..., Scorer]
) -> None:
    (source,) = blocks("python")
    module = user_module(source)
    rewards: list[dict[str, Any]] = yaml.safe_load(blocks("yaml")[1])["rewards"]
    job = scorer(*({**reward, "path": reward["path"].replace("ours.rewards", module)} for reward in rewards))
    table = job.score_table(response_table([["Please: 4", "5"]], [{"answer": "4"}]))
    assert table["reward"].to_pylist() == pytest.approx([1.1, 0.0])
    parts = {part["name"]: part["value"] for part in table["reward_parts"][0].as_py()}
    assert parts == {"polite": 1.0, "compute_score": 1.0, "compute_score/length": 9.0}


def test_the_conditions_that_it_shows_are_conditions() -> None:
    lines = [shlex.split(line) for line in PAGE.splitlines() if line.startswith("rollmill rescore")]
    conditions = [words[words.index("--where") + 1] for words in lines if "--where" in words]
    assert conditions
    for condition in conditions:
        RowFilter(condition)
    assert not {"logprobs", "response_token_ids"} & set(COLUMNS)
