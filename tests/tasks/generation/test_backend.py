"""Which jobs the vLLM backend takes, and what an engine's process starts with."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from builders import byte_tokenizer, save_policy, tiny_model
from pydantic import ValidationError
from transformers import AutoConfig

from rollmill.errors import JobError
from rollmill.tasks.generation.backend import check_backend
from rollmill.tasks.generation.config import EngineConfig, PolicyConfig, SamplingConfig
from rollmill.tasks.generation.model_setup import saved_stop_ids, stop_token_ids
from rollmill.tasks.generation.requests import reason_to_refuse
from rollmill.tasks.generation.vllm_environment import vllm_environment
from rollmill.tasks.planning import identity_of
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.rendering import RenderingFingerprint

VLLM = EngineConfig(backend="vllm")


@pytest.fixture
def with_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of that name can be found; it is never imported."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('imported by a check')")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_vllm_that_is_not_installed_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm").mkdir()  # a folder that happens to have the name is no vLLM
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        JobError, match=r"engine.backend: vllm is not installed .* set engine.backend to torch"
    ) as found:
        check_backend(VLLM, SamplingConfig())
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (SamplingConfig(temperature=0.005), "temperature: vLLM samples at 0 or from 0.01 to 2, got 0.005"),
        (SamplingConfig(temperature=2.5), "temperature: vLLM samples at 0 or from 0.01 to 2, got 2.5"),
        (SamplingConfig(frequency_penalty=0.5, max_tokens=128), r"rep_window: .* at least max_tokens \(128\), got 64"),
        (SamplingConfig(frequency_penalty=-3, rep_window=1024), "frequency_penalty: vLLM takes -2 to 2, got -3"),
    ],
)
def test_what_vllm_would_sample_otherwise_is_refused(with_vllm: None, sampling: SamplingConfig, message: str) -> None:
    with pytest.raises(JobError, match=message):
        check_backend(VLLM, sampling)
    check_backend(EngineConfig(), sampling)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(),
        SamplingConfig(temperature=0),
        SamplingConfig(temperature=0.7, top_p=0.9, top_k=20),
        SamplingConfig(frequency_penalty=0.5, rep_window=0),
        SamplingConfig(frequency_penalty=0.5, rep_window=128, max_tokens=128),
    ],
)
def test_what_means_the_same_to_both_backends_is_taken(with_vllm: None, sampling: SamplingConfig) -> None:
    check_backend(VLLM, sampling)


def test_a_share_of_memory_is_for_vllm_alone() -> None:
    assert EngineConfig(backend="vllm", memory_share=0.5).memory_share == 0.5
    with pytest.raises(ValidationError, match="memory_share is for backend vllm"):
        EngineConfig(memory_share=0.5)


def test_another_backend_is_another_run_and_torch_is_not_named() -> None:
    prompts, rendering = PromptsConfig(source="p.jsonl"), RenderingFingerprint(tokenizer="t", template="c")
    identities = [
        identity_of(PolicyConfig(model="m"), "w", prompts, "p", rendering, SamplingConfig(), backend)
        for backend in ("torch", "vllm")
    ]
    assert "engine" not in identities[0]
    assert identities[1] == {**identities[0], "engine": {"backend": "vllm"}}


def test_stop_ids_are_read_from_a_policys_folder_as_its_model_has_them(tmp_path: Path) -> None:
    folder = save_policy(tmp_path)
    model, tokenizer = tiny_model(), byte_tokenizer()
    config = AutoConfig.from_pretrained(folder)
    assert saved_stop_ids(folder, config, tokenizer) == stop_token_ids(model, tokenizer)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert saved_stop_ids(folder, config, tokenizer) == {7, 8, tokenizer.eos_token_id}
    (folder / "generation_config.json").unlink()
    assert saved_stop_ids(folder, config, tokenizer) == stop_token_ids(model, tokenizer)


def test_a_prompt_that_cannot_be_answered_is_told_from_one_that_can() -> None:
    assert reason_to_refuse([1, 2], max_seq_len=3, vocab_size=3) is None
    assert reason_to_refuse([], max_seq_len=3, vocab_size=3) == "the prompt has no tokens"
    assert "3 tokens, which leaves no room" in str(reason_to_refuse([1, 2, 0], max_seq_len=3, vocab_size=3))
    assert "token id 3 is outside" in str(reason_to_refuse([3], max_seq_len=3, vocab_size=3))


def test_an_engine_sees_the_gpu_that_its_number_means_among_the_visible_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert vllm_environment("cuda:1", 1)["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert vllm_environment("cuda:1", 1)["CUDA_VISIBLE_DEVICES"] == "6"
    assert vllm_environment("cpu", 3)["OMP_NUM_THREADS"] == "3"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,6"
