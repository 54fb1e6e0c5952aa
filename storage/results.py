"""The padded tensors that a trainer consumes: `RawRollout` from the generator, `RolloutResult` with rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from rollmill.storage.kept import KeptTokens


@dataclass(kw_only=True)
class RawRollout:
    """B prompts with G responses each, padded to P prompt tokens and R response tokens.

    Prompts are padded on the left and responses on the right, unless the maker was asked otherwise; masks come from
    lengths and never from token values, so a real token whose id equals the pad id stays a token.

    Shapes and types:
        prompts        [B, P] int64        prompt_mask   [B, P] bool
        responses      [B, G, R] int64     response_mask [B, G, R] bool
        logprobs_old   [B, G, R] float32   natural log; 0 where `response_mask` is False
        prompt_texts   [B]                 response_texts [B][G]
        prompt_ids     [B]                 finish_reasons [B][G], each stop, length or error
        policy_versions [B] int64          of the policy that answered each prompt; `policy_version` when left out
        full_logprobs  [B, G, R] float32   over the whole vocabulary at temperature 1, where asked for, else None
        kept_tokens    of each token, the ids that it was drawn from, where asked for, else None

    `logprobs_old` holds the log-probability of each token under the distribution that `logprob_mode` names.
    `policy_version` is that of the newest rollouts among which these are.
    Raises ValueError when shapes disagree or a log-probability of a real token is not finite.
    """

    prompts: Tensor
    prompt_mask: Tensor
    responses: Tensor
    response_mask: Tensor
    logprobs_old: Tensor
    prompt_texts: list[str]
    response_texts: list[list[str]]
    prompt_ids: list[str]
    finish_reasons: list[list[str]]
    policy_version: int = 0
    logprob_mode: str = "processed"
    columns: dict[str, list[Any]] = field(default_factory=dict)
    policy_versions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    full_logprobs: Tensor | None = None
    kept_tokens: KeptTokens | None = None

    def __post_init__(self) -> None:
        groups, group_size = self.responses.shape[:2]
        if self.policy_versions.numel() == 0:
            self.policy_versions = torch.full((groups,), self.policy_version, device=self.responses.device)
        _expect_shape("prompt_mask", self.prompt_mask, self.prompts.shape)
        _expect_shape("response_mask", self.response_mask, self.responses.shape)
        _expect_shape("logprobs_old", self.logprobs_old, self.responses.shape)
        _expect_shape("policy_versions", self.policy_versions, (groups,))
        for name in ("prompt_texts", "response_texts", "prompt_ids", "finish_reasons"):
            _expect_length(name, getattr(self, name), groups)
        for name in ("response_texts", "finish_reasons"):
            for row in getattr(self, name):
                _expect_length(f"a row of {name}", row, group_size)
        if not _all_finite(self.logprobs_old) and not _all_finite(self.logprobs_old[self.response_mask]):
            raise ValueError("logprobs_old holds values that are not finite where response_mask is True")

    @property
    def num_groups(self) -> int:
        """B, the number of prompts."""
        return int(self.responses.shape[0])

    @property
    def group_size(self) -> int:
        """G, the number of responses of each prompt."""
        return int(self.responses.shape[1])

    def to(self, device: torch.device | str) -> Self:
        """Return the same rollout with every tensor on `device`."""
        return self._with_tensors(lambda tensor: tensor.to(device), lambda kept: kept.to(device))

    def pin_memory(self) -> Self:
        """Return the same rollout with every tensor in page-locked memory, as a `DataLoader` asks for it."""
        return self._with_tensors(Tensor.pin_memory, KeptTokens.pin_memory)

    def _with_tensors(
        self, change: Callable[[Tensor], Tensor], change_kept: Callable[[KeptTokens], KeptTokens]
    ) -> Self:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {
            name: change(value) if isinstance(value, Tensor) else value for name, value in values.items()
        }
        if self.kept_tokens is not None:
            changed["kept_tokens"] = change_kept(self.kept_tokens)
        return replace(self, **changed)


@dataclass(kw_only=True)
class RolloutResult(RawRollout):
    """A `RawRollout` with `rewards` [B, G] float32, NaN where scoring failed or there was nothing to score."""

    rewards: Tensor

    def __post_init__(self) -> None:
        RawRollout.__post_init__(self)
        _expect_shape("rewards", self.rewards, self.responses.shape[:2])
        if self.rewards.dtype != torch.float32:
            raise ValueError(f"rewards must be float32, got {self.rewards.dtype}")


def pad_rows(rows: Sequence[Sequence[int]], *, pad_id: int, side: str) -> tuple[Tensor, Tensor]:
    """Pad ragged token ids to ([rows, longest] int64, bool mask from the lengths), on the `side` left or right."""
    if side not in ("left", "right"):
        raise ValueError(f"padding side must be left or right, got {side}")
    longest = max((len(row) for row in rows), default=0)
    ids = torch.full((len(rows), longest), pad_id, dtype=torch.int64)
    mask = torch.zeros((len(rows), longest), dtype=torch.bool)
    for index, row in enumerate(rows):
        place = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        ids[index, place] = torch.as_tensor(row, dtype=torch.int64)
        mask[index, place] = True
    return ids, mask


def _all_finite(tensor: Tensor) -> bool:
    if tensor.device.type == "cpu" and tensor.dtype == torch.float32:
        return bool(np.isfinite(tensor.detach().numpy()).all())  # torch's own threads would have to be waited for
    return bool(torch.isfinite(tensor).all())


def _expect_shape(name: str, tensor: Tensor, shape: Sequence[int]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")


def _expect_length(name: str, values: Sequence[object], length: int) -> None:
    if len(values) != length:
        raise ValueError(f"{name} must have {length} entries, got {len(values)}")
