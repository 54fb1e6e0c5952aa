"""A row's attention: softmax over just its prompt's keys and its own, whatever else is there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rollmill.tasks.generation.row_attention import attend_rows

SCALE, PROMPTS = 0.3, 4


@dataclass(frozen=True)
class Batch:
    query: Tensor
    new_keys: Tensor
    new_values: Tensor
    keys: Tensor
    values: Tensor
    lengths: Tensor
    prompt_keys: Tensor
    prompt_values: Tensor
    prompt_lengths: Tensor
    row_to_prompt: Tensor

    def attended(self, chosen: Tensor | None = None) -> Tensor:
        """Return the chosen rows' attention, by default that of all rows."""
        stored = (self.query, self.new_keys, self.new_values, self.keys, self.values, self.lengths)
        chosen = self.row_to_prompt.argsort() if chosen is None else chosen
        part = (chosen, self.row_to_prompt[chosen], self.prompt_keys, self.prompt_values, self.prompt_lengths)
        return attend_rows(*stored, SCALE, [part])


def batch(rows: int, *, kv_heads: int = 3, queries: int = 3, dim: int = 64, dtype: torch.dtype, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, rows + 2, kv_heads, 70, dim, generator=generator).to(dtype)
    lengths = torch.randint(1, 71, (rows,), generator=generator)
    last = (torch.arange(rows), slice(None), lengths - 1)
    prompt_keys, prompt_values = torch.randn(2, PROMPTS, kv_heads, 40, dim, generator=generator).to(dtype)
    return Batch(
        query=torch.randn(rows, kv_heads, queries, dim, generator=generator).to(dtype),
        new_keys=keys[last].clone(),
        new_values=values[last].clone(),
        keys=keys,
        values=values,
        lengths=lengths,
        prompt_keys=prompt_keys,
        prompt_values=prompt_values,
        prompt_lengths=torch.randint(1, 41, (PROMPTS,), generator=generator),
        row_to_prompt=torch.randint(0, PROMPTS, (rows,), generator=generator),
    )


def expected(given_batch: Batch, row: int) -> Tensor:
    """Softmax in float64."""
    length, prompt = int(given_batch.lengths[row]), int(given_batch.row_to_prompt[row])
    before = int(given_batch.prompt_lengths[prompt])
    keys, values = (
        torch.cat([shared[prompt, :, :before], own[row, :, :length]], 1).double()
        for shared, own in (
            (given_batch.prompt_keys, given_batch.keys),
            (given_batch.prompt_values, given_batch.values),
        )
    )
    return (given_batch.query[row].double() @ keys.transpose(-1, -2) * SCALE).softmax(-1) @ values


@given(
    rows=st.integers(1, 40),
    kv_heads=st.integers(1, 4),
    queries=st.integers(1, 5),
    dim=st.sampled_from([4, 16, 48, 64, 80, 128]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_it_is_softmax_over_the_real_keys_of_prompt_and_row(
    rows: int, kv_heads: int, queries: int, dim: int, dtype: torch.dtype, seed: int
) -> None:
    made = batch(rows, kv_heads=kv_heads, queries=queries, dim=dim, dtype=dtype, seed=seed)
    output = made.attended()
    rounding = 1e-5 if dtype == torch.float32 else 2**-8
    for row in range(rows):
        assert torch.allclose(output[row].double(), expected(made, row), atol=3e-6, rtol=rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_new_token_is_stored_in_its_rows_last_place_and_nowhere_else(dtype: torch.dtype) -> None:
    made = batch(5, dtype=dtype)
    whole_keys, whole_values, output = made.keys.clone(), made.values.clone(), made.attended()
    last = (torch.arange(5), slice(None), made.lengths - 1)
    made.keys[last], made.values[last] = 7.0, 7.0
    assert torch.equal(made.attended(), output)
    assert torch.equal(made.keys, whole_keys)
    assert torch.equal(made.values, whole_values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neither_other_rows_nor_more_room_nor_threads_change_a_bit(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = batch(80, dtype=dtype)
    output = made.attended()
    roomier = replace(
        made,
        keys=torch.cat([made.keys, torch.ones_like(made.keys)], 2),
        values=torch.cat([made.values, torch.ones_like(made.values)], 2),
    )
    assert torch.equal(roomier.attended(), output)
    for row in range(80):
        assert torch.equal(made.attended(torch.tensor([row]))[row], output[row])
    threads = torch.get_num_threads()
    monkeypatch.setenv("GOMP_SPINCOUNT", "3000")
    try:
        torch.set_num_threads(5)
        assert torch.equal(made.attended(), output)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_poisoned_key_shows_in_its_own_row_alone(poison: float) -> None:
    made = batch(6, dtype=torch.float32)
    made.lengths[2] = 40
    clean = made.attended()
    made.keys[2, :, 38] = poison
    output = made.attended()
    assert not torch.isfinite(output[2]).any()
    others = [row for row in range(6) if row != 2]
    assert torch.equal(output[others], clean[others])


def test_keys_beyond_a_length_are_never_read() -> None:
    made = batch(4, dtype=torch.float32)
    made.lengths[:] = 40
    clean = made.attended()
    made.keys[:, :, 40:] = float("nan")
    made.values[:, :, 40:] = float("nan")
    for prompt, length in enumerate(made.prompt_lengths):
        made.prompt_keys[prompt, :, length:] = float("nan")
        made.prompt_values[prompt, :, length:] = float("nan")
    assert torch.equal(made.attended(), clean)


def test_scores_far_apart_neither_overflow_nor_lose_the_largest() -> None:
    made = batch(3, dtype=torch.float32)
    far = replace(made, query=made.query * 1000)
    output = far.attended()
    for row in range(3):
        assert torch.allclose(output[row].double(), expected(far, row), atol=1e-3)
