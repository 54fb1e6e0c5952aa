"""Fused modules: they compute what the model's own do, take no other's place, and treat every row alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builders import FAMILIES, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    PreTrainedModel,
)

from rollmill.tasks.generation.fused_modules import FusedAttention, FusedGatedMLP, FusedNorm, fused_form
from rollmill.tasks.generation.packed_weights import pack_weights
from rollmill.tasks.generation.row_threads import as_array, run_on_rows

TYPES = [torch.float32, torch.bfloat16]
FUSED = {
    "llama": {FusedNorm: 5, FusedGatedMLP: 2, FusedAttention: 2},
    "qwen2": {FusedNorm: 5, FusedGatedMLP: 2, FusedAttention: 2},
    "qwen3": {FusedNorm: 9, FusedGatedMLP: 2},  # its attention norms queries and keys
    "mistral": {FusedNorm: 5, FusedGatedMLP: 2, FusedAttention: 2},
    "gpt2": {},
    "gpt_neox": {},
}
SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}


def norm_and_mlp(dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    layer = tiny_model("llama", dtype=dtype).get_submodule("model.layers.0")
    norm = layer.get_submodule("input_layernorm")
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2.0)  # type: ignore[union-attr, operator]
    return norm, layer.get_submodule("mlp")


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_fused_model_gives_the_logits_of_the_plain_one(family: str) -> None:
    model = tiny_model(family)
    ids = torch.randint(0, 256, (3, 40), generator=torch.Generator().manual_seed(1))
    expected = model(ids).logits
    pack_weights(model)
    torch.testing.assert_close(model(ids).logits, expected, atol=2e-4, rtol=1e-4)
    kinds = [type(module) for module in model.modules()]
    assert {kind: kinds.count(kind) for kind in (FusedNorm, FusedGatedMLP, FusedAttention) if kind in kinds} == FUSED[
        family
    ]


@torch.inference_mode()
def test_a_fused_model_generates_with_a_cache_as_the_plain_one_does() -> None:
    model = tiny_model("llama")
    ids = torch.randint(0, 256, (1, 20), generator=torch.Generator().manual_seed(1))
    expected = model.generate(ids, max_new_tokens=12, do_sample=False)  # type: ignore[operator]
    pack_weights(model)
    assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False), expected)  # type: ignore[operator]


def gemma() -> PreTrainedModel:
    return Gemma2ForCausalLM(Gemma2Config(**SIZES))


def cohere() -> PreTrainedModel:
    return CohereForCausalLM(CohereConfig(**{name: size for name, size in SIZES.items() if name != "head_dim"}))


def glm() -> PreTrainedModel:
    return Glm4ForCausalLM(Glm4Config(**SIZES, partial_rotary_factor=0.5))


@pytest.mark.parametrize(
    ("build", "kinds"),
    [
        (gemma, {"Gemma2RMSNorm", "Gemma2MLP"}),  # one is added to the weight; the gate is a GELU
        (cohere, {"CohereAttention"}),  # pairs lie side by side
        (glm, {"Glm4Attention", "Glm4MLP"}),  # the same, on half of the dimensions; gate and up are joined already
    ],
)
@torch.inference_mode()
def test_what_differs_stays_as_it_is(build: Callable[[], PreTrainedModel], kinds: set[str]) -> None:
    torch.manual_seed(0)
    model = build().eval()
    ids = torch.randint(1, 256, (2, 17))
    expected = model(ids).logits
    different = {type(module).__name__ for module in model.modules() if fused_form(module) is None}
    assert kinds <= different
    pack_weights(model)
    torch.testing.assert_close(model(ids).logits, expected, atol=1e-4, rtol=1e-4)


@given(dtype=st.sampled_from(TYPES), rows=st.integers(1, 40), place=st.integers(0, 99), seed=st.integers(0, 99))
@torch.inference_mode()
def test_a_row_does_not_depend_on_its_batch(dtype: torch.dtype, rows: int, place: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    both = torch.randn(rows, 192, generator=generator).to(dtype)
    place %= rows
    outputs = []
    for part in (both, both[place : place + 1], torch.cat([both] * 40)):
        output = torch.empty(len(part), 96, dtype=dtype)
        run_on_rows("gate_part", len(part), (as_array(part), as_array(output)), 8)
        outputs.append(output)
    assert torch.equal(outputs[0][place], outputs[1][0])
    assert torch.equal(outputs[2], torch.cat([outputs[0]] * 40))


@pytest.mark.parametrize("dtype", TYPES)
@torch.inference_mode()
def test_threads_change_no_bit(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "3000")
    norm, _ = norm_and_mlp(dtype)
    fused = fused_form(norm)
    assert fused is not None
    states = torch.randn(1, 1600, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    parts = [fused(part) for part in states.split(400, 1)]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        together = fused(states)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(together, torch.cat(parts, 1))
    rounding = 1e-6 if dtype == torch.float32 else 2**-7  # the plain one rounds twice
    torch.testing.assert_close(together, norm(states), atol=rounding, rtol=rounding)


@torch.inference_mode()
def test_bfloat16_is_rounded_once_to_nearest_even() -> None:
    generator = torch.Generator().manual_seed(0)
    states, factors = torch.randn(2, 64, 48, generator=generator).bfloat16()
    query, key, value = (torch.empty(64, heads, 16, dtype=torch.bfloat16) for heads in (1, 1, 1))
    sines = torch.zeros(64, 16, dtype=torch.bfloat16)
    arguments = (states, factors[:, :16], sines, query, key, value)
    run_on_rows("rotate_part", 64, tuple(map(as_array, arguments)))
    for place, rotated in enumerate((query, key)):
        exact = states[:, 16 * place : 16 * place + 16].float() * factors[:, :16].float()  # 16 bits of 24: no rounding
        assert torch.equal(rotated[:, 0], exact.bfloat16())
    assert torch.equal(value[:, 0], states[:, 32:])


@torch.inference_mode()
def test_dimensions_without_an_angle_stay_as_they_are() -> None:
    states, turn = torch.randn(5, 48), torch.randn(5, 8)
    query, key, value = (torch.empty(5, 1, 16) for _ in range(3))
    run_on_rows("rotate_part", 5, tuple(map(as_array, (states, turn.cos(), turn.sin(), query, key, value))))
    assert torch.equal(query[:, 0, 8:], states[:, 8:16])
    assert torch.equal(key[:, 0, 8:], states[:, 24:32])
    assert not torch.equal(query[:, 0, :8], states[:, :8])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@torch.inference_mode()
def test_a_poisoned_state_stays_visible_in_its_own_row_alone(dtype: torch.dtype, poison: float) -> None:
    for module in norm_and_mlp(dtype):
        fused = fused_form(module)
        assert fused is not None
        states = torch.randn(1, 24, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
        clean = fused(states)
        states[0, 3, 5] = poison
        output = fused(states)
        others = [row for row in range(24) if row != 3]
        assert not torch.isfinite(output[0, 3]).all()
        assert torch.equal(output[0, others], clean[0, others])


@pytest.mark.slow
def test_kernels_compiled_just_now_and_loaded_from_disk_give_the_same_bits(tmp_path: Path) -> None:
    worker = Path(__file__).parents[2] / "kernel_worker.py"

    def checksum(cache: str) -> str:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / cache), "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            [sys.executable, str(worker)], env=environment, check=True, capture_output=True, text=True
        ).stdout

    compiled, loaded, compiled_again = checksum("one"), checksum("one"), checksum("two")
    assert compiled == loaded == compiled_again
