"""Rewards are the same as before only when their code and weights are, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from builders import FAMILIES, byte_tokenizer
from pydantic import TypeAdapter
from transformers import LlamaConfig, LlamaForSequenceClassification

from rollmill.tasks.rewards.config import RewardConfigs
from rollmill.tasks.rewards.identity import rewards_fingerprint

SOURCE = """
    def score(prompts, completions, **columns):
        return [1.0 for _ in completions]
"""


def fingerprint(*rewards: dict[str, Any]) -> str:
    return rewards_fingerprint(TypeAdapter(RewardConfigs).validate_python(list(rewards)))


def test_an_edited_function_is_another_reward(user_module: Callable[[str], str], tmp_path: Path) -> None:
    name = user_module(SOURCE)
    reward = {"type": "function", "path": f"{name}:score"}
    gated = {"type": "gate", "condition": {"type": "length", "max": 3}, "rewards": [reward]}
    other = {"type": "last_number"}
    before = [fingerprint(reward), fingerprint(gated), fingerprint(other, reward), fingerprint(other)]
    again = [fingerprint(reward), fingerprint(gated), fingerprint(other, reward), fingerprint(other)]
    assert again == before
    file = tmp_path / f"{name}.py"
    file.write_text(file.read_text().replace("1.0", "2.0"))
    after = [fingerprint(reward), fingerprint(gated), fingerprint(other, reward), fingerprint(other)]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, False, False, True]


def test_a_function_that_is_named_by_another_file_is_the_one_where_it_is_defined(
    user_module: Callable[[str], str], tmp_path: Path
) -> None:
    name = user_module(SOURCE)
    reward = {"type": "function", "path": f"{user_module(f'from {name} import score')}:score"}
    before = fingerprint(reward)
    file = tmp_path / f"{name}.py"
    file.write_text(file.read_text().replace("1.0", "2.0"))
    assert fingerprint(reward) != before


def test_a_reward_model_with_other_weights_is_another_reward(tmp_path: Path) -> None:
    sizes = FAMILIES["llama"]().config
    config = LlamaConfig(**{**sizes.to_dict(), "num_labels": 1, "architectures": None})
    reward = {"type": "model", "model": str(tmp_path)}
    byte_tokenizer().save_pretrained(tmp_path)
    found = []
    for _ in range(2):
        LlamaForSequenceClassification(config).save_pretrained(tmp_path)
        found += [fingerprint(reward), fingerprint(reward)]
    assert found[0] == found[1] != found[2] == found[3]
