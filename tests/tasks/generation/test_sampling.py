"""One draw: what is kept, how it is weighed, and that nothing impossible is ever drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from rollmill.tasks.generation.sampling import Draw, RowSettings, draw, processed_weights
from rollmill.tasks.generation.seeds import row_seed, uniforms

JUST_BELOW_ONE = 1 - 2.0**-53
SMALLEST_NORMAL = math.log(torch.finfo(torch.float32).tiny)


def settings(
    rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, penalty: float = 0.0
) -> RowSettings:
    return RowSettings(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p),
        penalty=torch.full((rows,), penalty),
        max_top_k=top_k,
        any_greedy=temperature == 0,
        any_top_p=top_p < 1,
        any_penalty=penalty != 0,
    )


MIXED = RowSettings(
    temperature=torch.tensor([1.0, 1.0, 0.0, 1.0]),
    top_k=torch.tensor([0, 2, 0, 0]),
    top_p=torch.tensor([1.0, 1.0, 1.0, 0.75]),
    penalty=torch.zeros(4),
    max_top_k=2,
    any_greedy=True,
    any_top_p=True,
    any_penalty=False,
)


def kept(probabilities: list[float], **options: float) -> list[int]:
    logits = torch.tensor([probabilities]).log()
    weights, valid = processed_weights(logits, settings(1, **options))  # type: ignore[arg-type]
    assert valid.all()
    return torch.nonzero(weights[0])[:, 0].tolist()


def draw_at(logits: torch.Tensor, numbers: list[float], **options: float) -> Draw:
    rows = logits.expand(len(numbers), -1).clone()
    return draw(rows, torch.tensor(numbers, dtype=torch.float64), settings(len(numbers), **options))  # type: ignore[arg-type]


@example(row=[0.0, 167.0], numbers=[0.0], temperature=1.75)
@given(
    st.lists(st.one_of(st.just(float("-inf")), st.floats(-200, 200)), min_size=1, max_size=600).filter(
        lambda row: max(row) > float("-inf")
    ),
    st.lists(st.floats(0, JUST_BELOW_ONE), min_size=1, max_size=20),
    st.floats(0.05, 10),
)
def test_a_token_without_probability_is_never_drawn(row: list[float], numbers: list[float], temperature: float) -> None:
    logits = torch.tensor([row])
    drawn = draw_at(logits, [0.0, JUST_BELOW_ONE, *numbers], temperature=temperature)
    expected = torch.log_softmax(logits.double() / temperature, -1)[0]
    assert drawn.valid.all()
    assert (drawn.token_ids < len(row)).all()
    assert torch.isfinite(drawn.logprobs).all()
    wanted = expected[drawn.token_ids]
    tolerance = torch.where(wanted > SMALLEST_NORMAL, 1e-4, 0.5)  # a subnormal probability has few digits
    assert ((drawn.logprobs - wanted).abs() <= tolerance).all()


@given(st.lists(st.floats(-8, 8), min_size=2, max_size=700))
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(row: list[float]) -> None:
    logits = torch.tensor([row])
    edges = torch.softmax(logits.double(), -1)[0].cumsum(-1)
    numbers = torch.linspace(0.001, 0.999, 50, dtype=torch.float64)
    distance = (numbers[:, None] - edges[None]).abs().amin(-1)
    clear = numbers[distance > 1e-5]
    drawn = draw_at(logits, clear.tolist())
    assert drawn.token_ids.tolist() == torch.searchsorted(edges, clear, right=True).tolist()


def test_top_k_keeps_ties_with_the_last_kept_token() -> None:
    assert kept([0.4, 0.1, 0.2, 0.2, 0.1], top_k=1) == [0]
    assert kept([0.4, 0.1, 0.2, 0.2, 0.1], top_k=2) == [0, 2, 3]
    assert kept([0.4, 0.6], top_k=50) == [0, 1]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    assert kept([0.5, 0.3, 0.15, 0.05], top_p=0.4) == [0]
    assert kept([0.5, 0.3, 0.15, 0.05], top_p=0.6) == [0, 1]
    assert kept([0.05, 0.15, 0.3, 0.5], top_p=0.9) == [1, 2, 3]
    assert kept([0.25, 0.25, 0.25, 0.25], top_p=0.1) == [0, 1, 2, 3]


def test_top_p_looks_only_at_what_top_k_left() -> None:
    assert kept([0.4, 0.3, 0.2, 0.1], top_k=2, top_p=0.57) == [0]
    assert kept([0.4, 0.3, 0.2, 0.1], top_k=2, top_p=0.58) == [0, 1]


@pytest.mark.parametrize("vocab", [300, 5000])
def test_top_p_over_a_flat_distribution_needs_most_of_the_vocabulary(vocab: int) -> None:
    probabilities = torch.linspace(1, 2, vocab, dtype=torch.float64)
    order = (probabilities / probabilities.sum()).flip(0)
    expected = int((order.cumsum(-1) - order < 0.9).sum())
    assert len(kept(probabilities.tolist(), top_p=0.9)) == pytest.approx(expected, abs=1)


def test_rows_of_one_batch_keep_their_own_settings() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().repeat(4, 1)
    weights, _ = processed_weights(logits, MIXED)
    assert [torch.nonzero(row)[:, 0].tolist() for row in weights] == [[0, 1, 2, 3], [0, 1], [0], [0, 1, 2]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept_and_full", [False, True])
def test_a_row_draws_the_same_beside_rows_of_other_settings(dtype: torch.dtype, kept_and_full: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    mixed = replace(MIXED, any_kept=kept_and_full, any_full=kept_and_full)
    for _ in range(50):
        logits = (3 * torch.randn(4, 1000, generator=generator)).to(dtype)
        numbers = torch.rand(4, generator=generator, dtype=torch.float64)
        beside = draw(logits.clone(), numbers, mixed)
        alone = draw(logits[:1].clone(), numbers[:1], settings(1))
        assert torch.equal(beside.token_ids[:1], alone.token_ids)
        assert torch.equal(beside.logprobs[:1], alone.logprobs)
        assert beside.logprobs[2] == 0  # the greedy row
        if kept_and_full:
            assert beside.kept is not None
            assert all(token in ids for token, ids in zip(beside.token_ids.tolist(), beside.kept, strict=True))
            wanted = torch.log_softmax(logits.float(), -1).gather(1, beside.token_ids[:, None])[:, 0]
            torch.testing.assert_close(beside.full_logprobs, wanted, atol=1e-4, rtol=1e-4)


def test_bfloat16_logits_are_drawn_from_as_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(40, 3000, generator=generator)).bfloat16()
    numbers = torch.rand(40, generator=generator, dtype=torch.float64)
    ours, wider = (draw(given, numbers, settings(40, temperature=0.7)) for given in (logits, logits.float()))
    assert torch.equal(ours.token_ids, wider.token_ids)
    torch.testing.assert_close(ours.logprobs, wider.logprobs)


def test_a_token_less_likely_than_the_smallest_normal_number_is_not_drawn() -> None:
    assert draw_at(torch.tensor([[0.0, 87.5]]), [0.0]).token_ids.tolist() == [1]


def test_the_penalty_counts_each_occurrence_in_the_window() -> None:
    logits = torch.zeros(2, 4)
    recent = torch.tensor([[1, 1, 2], [3, -1, -1]])
    weights, _ = processed_weights(logits, settings(2, penalty=0.5), recent)
    expected = torch.tensor([[0.0, -1.0, -0.5, 0.0], [0.0, 0.0, 0.0, -0.5]]).exp()
    assert torch.allclose(weights[:, :4], expected)


def test_greedy_takes_the_first_of_equal_logits_with_logprob_zero() -> None:
    drawn = draw_at(torch.tensor([[1.0, 7.0, 7.0, 2.0]]), [0.0, 0.5, JUST_BELOW_ONE], temperature=0.0)
    assert drawn.token_ids.tolist() == [1, 1, 1]
    assert drawn.logprobs.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [[float("nan"), 0.0], [float("inf"), 0.0], [float("-inf")] * 2])
def test_unusable_logits_are_said_to_be_so(bad: list[float]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.tensor([[0.0, 1.0], bad, [1.0, 0.0]], dtype=dtype)
        drawn = draw(logits, torch.full((3,), 0.5, dtype=torch.float64), settings(3))
        assert drawn.valid.tolist() == [True, False, True]


def test_uniform_numbers_are_uniform_and_do_not_repeat_over_rows_or_positions() -> None:
    seeds = np.array([row_seed(0, f"prompt {p}", s) for p in range(100) for s in range(10)], dtype=np.uint64)
    numbers = np.stack([uniforms(seeds, np.full(1000, position, dtype=np.uint64)) for position in range(50)])
    assert len(np.unique(numbers)) == numbers.size
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
    assert ((counts - 500) ** 2 / 500).sum() < 150  # chi-square with 99 degrees of freedom, p of about 0.0007
    rows, positions = numbers.T, numbers
    assert abs(np.corrcoef(rows[:-1].ravel(), rows[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(positions[:-1].ravel(), positions[1:].ravel())[0, 1]) < 0.02


@given(st.integers(0, 2**63 - 1), st.text(max_size=30), st.integers(0, 4095))
def test_a_row_seed_depends_on_each_of_its_parts(seed: int, prompt_id: str, sample: int) -> None:
    base = row_seed(seed, prompt_id, sample)
    assert 0 <= base < 2**64
    others = {row_seed(seed + 1, prompt_id, sample), row_seed(seed, prompt_id + "x", sample)}
    assert base not in others | {row_seed(seed, prompt_id, sample + 1)}
