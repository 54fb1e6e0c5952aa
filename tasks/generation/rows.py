"""The responses in progress: a dense table of rows, whose order is that of the suffix cache's slots."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.tasks.generation.kv_cache import PrefixSlot, SuffixCache, round_up
from rollmill.tasks.generation.sampling import Draw, RowSettings
from rollmill.tasks.generation.seeds import uniforms
from rollmill.tasks.generation.types import Completion, FinishedGroup, PromptGroup, SamplingParams

_TOKEN_STEP = 256


@dataclass(slots=True, eq=False)
class GroupState:
    """One prompt on its way: queued, prefilled, being answered."""

    request: PromptGroup
    slot: PrefixSlot | None = None
    first_logits: Tensor | None = None  # (vocab,) kept while rows of the group still wait for a slot
    num_started: int = 0
    completions: dict[int, Completion] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """How many answers were asked for."""
        return len(self.request.seeds)

    @property
    def is_finished(self) -> bool:
        """Whether every answer is there."""
        return len(self.completions) == self.num_rows

    def finished(self) -> FinishedGroup:
        """Return the answers in the order of the seeds."""
        return FinishedGroup(
            key=self.request.key, completions=[self.completions[index] for index in range(self.num_rows)]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One response in progress."""

    group: GroupState
    sample_index: int
    max_tokens: int
    kept: list[NDArray[np.int64]] = field(default_factory=list)  # of each token so far, where the sampling asks for it

    @property
    def sampling(self) -> SamplingParams:
        """The settings of the row's group."""
        return self.group.request.sampling


class ActiveRows:
    """Rows 0 … n - 1, their tokens so far and their settings as arrays."""

    def __init__(self, suffix: SuffixCache, device: torch.device) -> None:
        self.rows: list[Row] = []
        self.num_tokens: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._suffix = suffix
        self._device = device
        self._seeds: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self._limits: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._tokens = torch.zeros((0, 0), dtype=torch.int64, device=device)
        self._logprobs = torch.zeros((0, 0), dtype=torch.float32, device=device)
        self._full_logprobs = torch.zeros((0, 0), dtype=torch.float32, device=device)
        self._settings: RowSettings | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def start(self, rows: list[Row]) -> None:
        """Append rows that have no token yet."""
        self.rows.extend(rows)
        self.num_tokens = np.append(self.num_tokens, np.zeros(len(rows), dtype=np.int64))
        self._arrange()

    def last_tokens(self, count: int) -> Tensor:
        """Return the newest token of each of the first `count` rows, (count,)."""
        places = torch.from_numpy(self.num_tokens[:count] - 1).to(self._device)
        return self._tokens[torch.arange(count, device=self._device), places]

    def uniforms(self) -> Tensor:
        """Return each row's random number at its next position, (rows,) float64."""
        return torch.from_numpy(uniforms(self._seeds, self.num_tokens.astype(np.uint64))).to(self._device)

    @property
    def settings(self) -> RowSettings:
        """The sampling settings of all rows."""
        assert self._settings is not None
        return self._settings

    def recent_tokens(self) -> Tensor | None:
        """Return (rows, window) last tokens of each row, -1 for none, or None when no row has a penalty."""
        if not self.settings.any_penalty:
            return None
        windows = torch.tensor([row.sampling.rep_window for row in self.rows], device=self._device)
        lengths = torch.from_numpy(self.num_tokens).to(self._device)
        back = torch.arange(1, int(windows.max()) + 1, device=self._device)
        places = lengths[:, None] - back[None]
        tokens = self._tokens[: len(self)].gather(1, places.clamp(min=0)) if self._tokens.shape[1] else places
        return torch.where((places >= 0) & (back[None] <= windows[:, None]), tokens, -1)

    def append(self, drawn: Draw) -> None:
        """Add one token to every row."""
        self._reserve(len(self), int(self.num_tokens.max()) + 1)
        rows = torch.arange(len(self), device=self._device)
        places = torch.from_numpy(self.num_tokens).to(self._device)
        self._tokens[rows, places] = drawn.token_ids
        self._logprobs[rows, places] = drawn.logprobs
        if drawn.full_logprobs is not None:
            self._full_logprobs[rows, places] = drawn.full_logprobs
        if drawn.kept is not None:
            for row, kept in zip(self.rows, drawn.kept, strict=True):
                if row.sampling.kept_token_ids:
                    row.kept.append(kept)
        self.num_tokens = self.num_tokens + 1

    def at_limit(self) -> NDArray[np.bool_]:
        """Return which rows have all the tokens that they may have, (rows,)."""
        return np.asarray(self.num_tokens >= self._limits)

    def completion(self, index: int, finish_reason: str) -> Completion:
        """Return what a row has come to."""
        row, count = self.rows[index], int(self.num_tokens[index])
        return Completion(
            token_ids=self._tokens[index, :count].tolist(),
            logprobs=self._logprobs[index, :count].tolist(),
            finish_reason=finish_reason,
            kept_token_ids=[ids.tolist() for ids in row.kept] if row.sampling.kept_token_ids else None,
            full_logprobs=self._full_logprobs[index, :count].tolist() if row.sampling.full_logprobs else None,
        )

    def remove(self, indices: list[int]) -> None:
        """Drop rows; the last rows move into the holes, with their keys, values and tokens."""
        for index in sorted(indices, reverse=True):
            last = len(self.rows) - 1
            if index != last:
                self._move(last, index)
            self.rows.pop()
            self.num_tokens = self.num_tokens[:-1]
        self._suffix.num_used = len(self.rows)
        self._arrange()

    def _move(self, source: int, target: int) -> None:
        count = int(self.num_tokens[source])
        self.rows[target] = self.rows[source]
        self.num_tokens[target] = count
        for table in (self._tokens, self._logprobs, self._full_logprobs):
            table[target, :count] = table[source, :count]
        if count > 1:  # the newest token's key is not stored yet
            self._suffix.move(source, target, count - 1)

    def _reserve(self, rows: int, length: int) -> None:
        have_rows, have_length = self._tokens.shape
        if rows <= have_rows and length <= have_length:
            return
        shape = (max(rows, have_rows), max(round_up(length, _TOKEN_STEP), have_length))
        for name in ("_tokens", "_logprobs", "_full_logprobs"):
            old = getattr(self, name)
            new = old.new_zeros(shape)
            new[:have_rows, :have_length] = old
            setattr(self, name, new)

    def _arrange(self) -> None:
        """Rebuild the arrays that depend only on which rows there are."""
        samplings = [row.sampling for row in self.rows]
        seeds = [row.group.request.seeds[row.sample_index] for row in self.rows]
        self._seeds = np.array(seeds, dtype=np.uint64)
        self._limits = np.array([row.max_tokens for row in self.rows], dtype=np.int64)
        penalties = [s.frequency_penalty if s.rep_window else 0.0 for s in samplings]
        self._settings = RowSettings(
            temperature=torch.tensor([s.temperature for s in samplings], dtype=torch.float32, device=self._device),
            top_k=torch.tensor([s.top_k for s in samplings], dtype=torch.int64, device=self._device),
            top_p=torch.tensor([s.top_p for s in samplings], dtype=torch.float32, device=self._device),
            penalty=torch.tensor(penalties, dtype=torch.float32, device=self._device),
            max_top_k=max((s.top_k for s in samplings), default=0),
            any_greedy=any(s.temperature == 0 for s in samplings),
            any_top_p=any(s.top_p < 1 for s in samplings),
            any_penalty=any(penalties),
            any_kept=any(s.kept_token_ids for s in samplings),
            any_full=any(s.full_logprobs for s in samplings),
        )
