"""The ids that each token was drawn from, so that a trainer can renormalise over the same set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.storage.group_table import KEPT_COUNTS, KEPT_IDS, GroupTable


@dataclass(frozen=True, slots=True, eq=False)
class KeptTokens:
    """What top-k and top-p left of the vocabulary at every token of responses [B, G, R].

    token_ids  (n,) int64, the ids kept at all tokens, one token's after the other's
    places     (n,) int64, at which token each of them is: its place in the flattened [B * G * R]
    """

    token_ids: Tensor
    places: Tensor

    def log_normaliser(self, logits: Tensor) -> Tensor:
        """Return the log-sum-exp over the kept ids, [B, G, R], of processed logits [B, G, R, vocab].

        The logits are those of the sampling distribution before top-k and top-p: less the frequency penalty, divided
        by the temperature. A token's log-probability under the distribution that it was drawn from is its own logit
        minus this. Differentiable; 0 where there is no token.
        """
        flat = logits.reshape(-1, logits.shape[-1])
        kept = flat[self.places, self.token_ids]
        top = flat.new_zeros(flat.shape[0]).scatter_reduce(0, self.places, kept.detach(), "amax", include_self=False)
        totals = flat.new_zeros(flat.shape[0]).index_add(0, self.places, (kept - top[self.places]).exp())
        return (top + torch.where(totals > 0, totals, 1.0).log()).view(logits.shape[:-1])

    def to(self, device: torch.device | str) -> KeptTokens:
        """Return the same on `device`."""
        return KeptTokens(self.token_ids.to(device), self.places.to(device))

    def pin_memory(self) -> KeptTokens:
        """Return the same in page-locked memory."""
        return KeptTokens(self.token_ids.pin_memory(), self.places.pin_memory())


def kept_tokens(rows: Sequence[tuple[GroupTable, NDArray[np.int64]]], response_length: int, side: str) -> KeptTokens:
    """Return the kept ids of rows that are padded to `response_length` on `side`, one row after the other."""
    counts = _joined(rows, KEPT_COUNTS)
    lengths = np.concatenate([_lengths(table, KEPT_COUNTS, numbers) for table, numbers in rows])
    first = np.arange(len(lengths)) * response_length
    if side == "left":
        first += response_length - lengths
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.repeat(np.repeat(first, lengths) + within, counts)
    return KeptTokens(
        torch.from_numpy(_joined(rows, KEPT_IDS).astype(np.int64)), torch.from_numpy(places.astype(np.int64))
    )


def _lengths(table: GroupTable, name: str, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = table.lists[name].lengths()[numbers]
    return lengths


def _joined(rows: Sequence[tuple[GroupTable, NDArray[np.int64]]], name: str) -> NDArray[Any]:
    parts = [table.lists[name].values_of(number) for table, numbers in rows for number in numbers]
    return np.concatenate([np.zeros(0, np.int64), *parts])
