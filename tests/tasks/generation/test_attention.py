"""Attention over padded keys: what is padded, and how much, must not show in the result."""

from __future__ import annotations

import pytest
import torch

from rollmill.tasks.generation.attention import attend
from rollmill.tasks.generation.kv_cache import ALIGNMENT, round_up
from rollmill.tasks.generation.layout import _length_mask


def attended(length: int, padded: int, rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    query = torch.randn(9, 3, 3, 64, generator=generator).to(dtype)
    key, value = torch.randn(2, 9, 3, 320, 64, generator=generator).to(dtype)
    mask = _length_mask(torch.full((rows,), length), padded)
    return attend(query[:rows], key[:rows, :, :padded], value[:rows, :, :padded], mask, 0.125)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neither_more_padding_nor_other_rows_change_a_bit(dtype: torch.dtype) -> None:
    for length in range(1, 200):
        shortest = round_up(length, ALIGNMENT)
        output, lse = attended(length, shortest, 9, dtype)
        for padded, rows in ((shortest + ALIGNMENT, 9), (shortest + 3 * ALIGNMENT, 4), (shortest, 1)):
            other, other_lse = attended(length, padded, rows, dtype)
            assert torch.equal(other, output[:rows]), (length, padded, rows)
            assert torch.equal(other_lse, lse[:rows]), (length, padded, rows)


def test_attention_is_softmax_over_the_real_keys_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 5, 2, 4, 16, generator=generator)
    lengths = torch.tensor([1, 2, 3, 4, 4])
    output, lse = attend(query, key, value, _length_mask(lengths, 4), 0.25)
    for row, length in enumerate(lengths.tolist()):
        scores = query[row].double() @ key[row, :, :length].double().transpose(-1, -2) * 0.25
        assert torch.allclose(lse[row], scores.logsumexp(-1), atol=1e-5)
        assert torch.allclose(output[row].double(), scores.softmax(-1) @ value[row, :, :length].double(), atol=1e-5)
