"""The bundled policy, for tests against a real vLLM."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from vllm_builders import POLICY

from rollmill.tasks.generation.policies import load_policy


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs vLLM where there is none; `make test-vllm` makes an environment that has it."""
    if importlib.util.find_spec("vllm") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed here: make test-vllm"))


@pytest.fixture(scope="session")
def loaded() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The policy as transformers runs it, in float32."""
    return load_policy(POLICY, dtype="float32", device="cpu")
