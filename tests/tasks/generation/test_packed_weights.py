from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch
from builders import save_policy, tiny_model
from torch import nn

from rollmill.tasks.generation.packed_weights import PackedLinear, pack_weights
from rollmill.tasks.generation.policies import load_policy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(576, 576), (192, 576), (576, 1536), (1000, 64)])
@torch.inference_mode()
def test_a_row_comes_out_the_same_in_every_batch(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(shape[1], shape[0], dtype=dtype)
    packed = PackedLinear(linear)
    row = torch.randn(shape[1], generator=generator).to(dtype)
    outputs = []
    for rows in (16, 32, 48, 64, 96, 128, 320, 1024):
        for place in (0, rows // 2, rows - 1):
            batch = torch.randn(rows, shape[1], generator=generator).to(dtype)
            batch[place] = row
            outputs.append(packed(batch[None])[0, place])
    assert all(torch.equal(output, outputs[0]) for output in outputs)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(outputs[0], linear(row), atol=tolerance, rtol=tolerance)


@torch.inference_mode()
def test_a_packed_model_gives_the_logits_of_the_plain_one_and_drops_its_weights() -> None:
    model = tiny_model()
    ids = torch.arange(12)[None]
    expected = model(ids).logits
    before = sum(parameter.numel() for parameter in model.parameters())
    count = pack_weights(model)
    assert count > 0
    assert not [module for module in model.modules() if type(module) is nn.Linear]
    assert sum(parameter.numel() for parameter in model.parameters()) < before
    torch.testing.assert_close(model(ids).logits, expected, atol=1e-5, rtol=1e-5)


def test_half_precision_stays_as_it_is() -> None:
    assert pack_weights(nn.Sequential(nn.Linear(8, 8, dtype=torch.float16))) == 0


def test_a_bias_is_added() -> None:
    linear = nn.Linear(32, 16)
    with torch.inference_mode():
        states = torch.randn(3, 20, 32)
        torch.testing.assert_close(PackedLinear(linear)(states), linear(states))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_packed_policy_lets_go_of_the_file_that_its_weights_were_mapped_from(tmp_path: Path) -> None:
    folder = save_policy(tmp_path / "policy")

    def is_mapped() -> bool:
        gc.collect()
        return str(folder) in Path("/proc/self/maps").read_text()

    model, _ = load_policy(str(folder), dtype="float32", device="cpu")
    assert is_mapped()
    pack_weights(model)
    assert not is_mapped()
