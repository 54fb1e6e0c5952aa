from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollmill.storage.results import RawRollout, RolloutResult, pad_rows


@given(rows=st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=5), side=st.sampled_from(["left", "right"]))
def test_padding_keeps_every_token_and_masks_the_rest(rows: list[list[int]], side: str) -> None:
    ids, mask = pad_rows(rows, pad_id=0, side=side)
    assert [row[keep].tolist() for row, keep in zip(ids, mask, strict=True)] == rows
    assert mask.sum(dim=1).tolist() == [len(row) for row in rows]
    edge = mask if side == "right" else mask.flip(1)
    assert (edge.long().diff(dim=1) <= 0).all()


def test_a_side_that_is_neither_is_refused() -> None:
    with pytest.raises(ValueError, match="padding side must be left or right, got top"):
        pad_rows([[1]], pad_id=0, side="top")


def values(**changes: Any) -> dict[str, Any]:
    """The fields of a sound result of 2 prompts with 3 responses."""
    return {
        "prompts": torch.ones(2, 4, dtype=torch.int64),
        "prompt_mask": torch.ones(2, 4, dtype=torch.bool),
        "responses": torch.ones(2, 3, 5, dtype=torch.int64),
        "response_mask": torch.ones(2, 3, 5, dtype=torch.bool),
        "logprobs_old": torch.zeros(2, 3, 5),
        "prompt_texts": ["a", "b"],
        "response_texts": [["x"] * 3] * 2,
        "prompt_ids": ["p0", "p1"],
        "finish_reasons": [["stop"] * 3] * 2,
        "rewards": torch.zeros(2, 3),
        **changes,
    }


def test_a_result_is_a_raw_rollout_with_rewards() -> None:
    result = RolloutResult(**values())
    assert isinstance(result, RawRollout)
    assert (result.num_groups, result.group_size) == (2, 3)
    moved = result.to("cpu")
    assert type(moved) is RolloutResult
    assert torch.equal(moved.rewards, result.rewards)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_mask": torch.ones(2, 3, dtype=torch.bool)}, "prompt_mask must have shape"),
        ({"response_mask": torch.ones(2, 3, 4, dtype=torch.bool)}, "response_mask must have shape"),
        ({"logprobs_old": torch.zeros(2, 3)}, "logprobs_old must have shape"),
        ({"rewards": torch.zeros(2)}, "rewards must have shape"),
        ({"rewards": torch.zeros(2, 3, dtype=torch.float64)}, "rewards must be float32"),
        ({"prompt_ids": ["p0"]}, "prompt_ids must have 2 entries, got 1"),
        ({"finish_reasons": [["stop"] * 2] * 2}, "a row of finish_reasons must have 3 entries, got 2"),
        ({"logprobs_old": torch.full((2, 3, 5), float("nan"))}, "not finite where response_mask is True"),
    ],
)
def test_shapes_that_disagree_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RolloutResult(**values(**change))


def test_what_is_masked_may_be_anything() -> None:
    nothing = torch.zeros(2, 3, 5, dtype=torch.bool)
    result = RolloutResult(**values(response_mask=nothing, logprobs_old=torch.full((2, 3, 5), float("nan"))))
    assert result.logprobs_old.isnan().all()
