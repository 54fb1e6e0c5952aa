"""A row's attention to its own keys: softmax over just them and the shared ones, whatever else is in the batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rollmill.tasks.generation.row_attention import attend_rows

SCALE = 0.3


@dataclass(frozen=True)
class Batch:
    query: Tensor
    new_keys: Tensor
    new_values: Tensor
    keys: Tensor
    values: Tensor
    lengths: Tensor
    shared: Tensor
    shared_lse: Tensor
    row_to_lane: Tensor

    def attended(self) -> Tensor:
        stored = (self.query, self.new_keys, self.new_values, self.keys, self.values, self.lengths)
        return attend_rows(*stored, SCALE, self.shared, self.shared_lse, self.row_to_lane)


def batch(rows: int, *, kv_heads: int = 3, queries: int = 3, dim: int = 64, dtype: torch.dtype, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, rows + 2, kv_heads, 70, dim, generator=generator).to(dtype)
    lengths = torch.randint(1, 71, (rows,), generator=generator)
    last = (torch.arange(rows), slice(None), lengths - 1)
    return Batch(
        query=torch.randn(rows, kv_heads, queries, dim, generator=generator).to(dtype),
        new_keys=keys[last].clone(),
        new_values=values[last].clone(),
        keys=keys,
        values=values,
        lengths=lengths,
        shared=torch.randn(rows + 1, kv_heads, queries, dim, generator=generator).to(dtype),
        shared_lse=torch.randn(rows + 1, kv_heads, queries, generator=generator).double() + 3,
        row_to_lane=torch.randperm(rows + 1, generator=generator)[:rows],
    )


def expected(given_batch: Batch, row: int) -> Tensor:
    """Softmax in float64, the shared part taken as one more key with its log-sum-exp as score."""
    length, lane = int(given_batch.lengths[row]), int(given_batch.row_to_lane[row])
    keys, values = given_batch.keys[row, :, :length].double(), given_batch.values[row, :, :length].double()
    scores = given_batch.query[row].double() @ keys.transpose(-1, -2) * SCALE
    weights = torch.cat([scores, given_batch.shared_lse[lane].unsqueeze(-1)], -1).softmax(-1)
    return weights[..., :-1] @ values + weights[..., -1:] * given_batch.shared[lane].double()


@given(
    rows=st.integers(1, 9),
    kv_heads=st.integers(1, 4),
    queries=st.integers(1, 5),
    dim=st.sampled_from([4, 16, 48, 64, 80, 128]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_it_is_softmax_over_the_real_keys_and_the_shared_part(
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
    made = batch(37, dtype=dtype)
    output = made.attended()
    roomier = replace(
        made,
        keys=torch.cat([made.keys, torch.ones_like(made.keys)], 2),
        values=torch.cat([made.values, torch.ones_like(made.values)], 2),
    )
    assert torch.equal(roomier.attended(), output)
    for row in range(37):
        part = slice(row, row + 1)
        alone = replace(
            made,
            query=made.query[part],
            new_keys=made.new_keys[part],
            new_values=made.new_values[part],
            keys=made.keys[part],
            values=made.values[part],
            lengths=made.lengths[part],
            row_to_lane=made.row_to_lane[part],
        )
        assert torch.equal(alone.attended()[0], output[row])
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


def test_keys_beyond_a_rows_length_are_never_read() -> None:
    made = batch(4, dtype=torch.float32)
    made.lengths[:] = 40
    clean = made.attended()
    made.keys[:, :, 40:] = float("nan")
    made.values[:, :, 40:] = float("nan")
    assert torch.equal(made.attended(), clean)


def test_scores_far_apart_neither_overflow_nor_lose_the_largest() -> None:
    made = batch(3, dtype=torch.float32)
    far = replace(made, query=made.query * 1000)
    output = far.attended()
    for row in range(3):
        assert torch.allclose(output[row].double(), expected(far, row), atol=1e-3)
