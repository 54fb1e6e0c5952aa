"""Continuous batching: groups of answers go in, finished groups come out, and the batch is refilled as rows finish."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rollmill.errors import PolicyError
from rollmill.tasks.generation.attention import packed_attention
from rollmill.tasks.generation.compatibility import check_config, probe_kv_shape
from rollmill.tasks.generation.kv_cache import PrefixPool, SuffixCache
from rollmill.tasks.generation.layout import LayoutBuilder
from rollmill.tasks.generation.model_setup import evaluating, stop_token_ids, usable_seq_len
from rollmill.tasks.generation.requests import fresh_seeds, group_equal_neighbours, reason_to_refuse
from rollmill.tasks.generation.rows import ActiveRows, GroupState, Row
from rollmill.tasks.generation.sampling import draw
from rollmill.tasks.generation.types import (
    FINISH_ERROR,
    FINISH_LENGTH,
    FINISH_STOP,
    Completion,
    FinishedGroup,
    PromptGroup,
    SamplingParams,
)

MAX_PREFILL_TOKENS = 2048


class InferenceScheduler:
    """Answers prompts with a causal LM, keeping up to `max_batch_size` answers in progress.

    The model is used as it is, through its own `forward`; its attention setting and its training mode are put back
    after every step. A prompt is prefilled once for all its answers. Work beyond `max_batch_size` waits in a queue.
    `max_seq_len` bounds prompt plus answer, in tokens, and is the model's own limit by default.

    The streaming primitive is `submit` and `step`; `stream` and `run_batch` are built on it. Not thread-safe.
    Raises PolicyError for a model that cannot be run exactly, ValueError for a size below 1.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        max_batch_size: int = 64,
        max_seq_len: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if max_batch_size < 1:
            raise ValueError(f"max_batch_size must be at least 1, got {max_batch_size}")
        self.model = model.to(device=device, dtype=dtype)
        self.max_batch_size = max_batch_size
        self.max_seq_len = usable_seq_len(model, max_seq_len)
        check_config(model.config, self.max_seq_len)
        if "logits_to_keep" not in inspect.signature(model.forward).parameters:
            raise PolicyError(f"{type(model).__name__} is not a causal LM: its forward has no logits_to_keep")
        self.stop_ids = stop_token_ids(model, tokenizer)
        self.num_tokens_generated = 0
        self.num_rows_finished = 0
        self._stop_array = np.array(sorted(self.stop_ids), dtype=np.int64)
        with evaluating(model):
            shape = probe_kv_shape(model, self.max_seq_len)
        self._prefixes = PrefixPool(shape)
        self._suffix = SuffixCache(shape)
        self._active = ActiveRows(self._suffix, model.device)
        self._layouts = LayoutBuilder(self._suffix, self._prefixes, shape)
        self._queue: deque[GroupState] = deque()
        self._refused: list[FinishedGroup] = []

    @property
    def num_waiting_rows(self) -> int:
        """Answers that have been submitted and not been started."""
        return sum(group.num_rows - group.num_started for group in self._queue)

    @property
    def has_work(self) -> bool:
        """Whether another `step` would bring something."""
        return bool(self._queue or self._active.rows or self._refused)

    @property
    def num_cache_bytes(self) -> int:
        """Bytes that hold keys and values now."""
        return self._prefixes.num_bytes + self._suffix.num_bytes

    def submit(self, group: PromptGroup) -> None:
        """Queue a group. One that cannot be answered comes back from the next `step` with finish_reason error."""
        vocab_size = self.model.get_input_embeddings().weight.shape[0]
        reason = reason_to_refuse(group.input_ids, self.max_seq_len, vocab_size)
        if reason is None and group.seeds:
            self._queue.append(GroupState(request=group))
        else:
            self.num_rows_finished += len(group.seeds)
            self._refused.append(FinishedGroup(key=group.key, completions=[_error(reason or "")] * len(group.seeds)))

    @torch.inference_mode()
    def step(self) -> list[FinishedGroup]:
        """Give every active answer one token, start what fits beside them, and return the groups that are complete."""
        finished, self._refused = self._refused, []
        num_rows = len(self._active)
        prefilled, started = self._admit()
        if not num_rows and not started:
            return finished
        with evaluating(self.model):
            logits = self._forward(num_rows, prefilled, started)
            done = self._sample(logits)
        finished += self._retire(done)
        if started or done:
            self._layouts.rows_changed()
        return finished

    def stream(self, groups: Iterable[PromptGroup]) -> Iterator[FinishedGroup]:
        """Answer groups as they come, yielding each as soon as its last answer ends (not in order).

        `groups` is read no further ahead than the batch can use. Abandoning the iterator drops what is in progress.
        """
        source, exhausted = iter(groups), False
        try:
            while self.has_work or not exhausted:
                while not exhausted and self.num_waiting_rows < self.max_batch_size:
                    group = next(source, None)
                    exhausted = group is None
                    if group is not None:
                        self.submit(group)
                yield from self.step()
        finally:
            self.reset()

    def run_batch(
        self,
        prompt_ids_list: Sequence[Sequence[int]],
        *,
        max_tokens: int | Sequence[int] = 1024,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        frequency_penalty: float = 0.0,
        rep_window: int = 64,
        return_logprobs: bool = True,
        kept_token_ids: bool = False,
        full_logprobs: bool = False,
        seeds: Sequence[int] | None = None,
    ) -> list[Completion]:
        """Answer each prompt once, in order; equal neighbours share one prefill.

        `max_tokens` may be given per prompt. `seeds` has one 64-bit seed per prompt; without them torch's default
        generator draws some, so `torch.manual_seed` makes a batch repeatable.
        """
        count = len(prompt_ids_list)
        limits = [max_tokens] * count if isinstance(max_tokens, int) else list(max_tokens)
        row_seeds = fresh_seeds(count) if seeds is None else [int(seed) for seed in seeds]
        if len(limits) != count or len(row_seeds) != count:
            raise ValueError(f"max_tokens and seeds must have one entry for each of the {count} prompts")
        sampling = SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            frequency_penalty=frequency_penalty,
            rep_window=rep_window,
            kept_token_ids=kept_token_ids,
            full_logprobs=full_logprobs,
        )
        requests = group_equal_neighbours(prompt_ids_list, limits, row_seeds, sampling)
        completions: dict[int, Completion] = {}
        for group in self.stream(requests):
            completions.update(enumerate(group.completions, start=int(group.key)))
        ordered = [completions[index] for index in range(count)]
        return ordered if return_logprobs else [replace(completion, logprobs=[]) for completion in ordered]

    @torch.inference_mode()
    def reset(self) -> None:
        """Drop everything that is queued or in progress."""
        self._queue.clear()
        self._refused.clear()
        self._prefixes.clear()
        self._active.remove(list(range(len(self._active))))
        self._layouts.rows_changed()

    def _admit(self) -> tuple[list[GroupState], list[Row]]:
        """Take as many rows from the queue as fit; return the groups to prefill and the rows that start."""
        prefilled: list[GroupState] = []
        started: list[Row] = []
        num_tokens = 0
        while self._queue and len(self._active) + len(started) < self.max_batch_size:
            group = self._queue[0]
            length = len(group.request.input_ids)
            if group.slot is None:
                if prefilled and num_tokens + length > MAX_PREFILL_TOKENS:
                    break
                group.slot = self._prefixes.add(group, length)
                prefilled.append(group)
                num_tokens += length
            room = self.max_batch_size - len(self._active) - len(started)
            started.extend(self._start(group, room))
            if group.num_started == group.num_rows:
                self._queue.popleft()
        if started:
            self._active.start(started)
            self._layouts.rows_changed()
        return prefilled, started

    def _start(self, group: GroupState, room: int) -> list[Row]:
        first = group.num_started
        group.num_started = min(group.num_rows, first + room)
        limit = min(group.request.sampling.max_tokens, self.max_seq_len - len(group.request.input_ids))
        return [Row(group=group, sample_index=index, max_tokens=limit) for index in range(first, group.num_started)]

    def _forward(self, num_rows: int, prefilled: list[GroupState], started: list[Row]) -> Tensor:
        """Return the logits of every active row, (rows, vocab) in the model's dtype."""
        parts = []
        if num_rows or prefilled:
            logits = self._packed_logits(num_rows, prefilled)
            parts.append(logits[:num_rows])
            for offset, group in enumerate(prefilled, start=num_rows):
                group.first_logits = logits[offset].clone()
        if started:
            parts.append(torch.stack([_first_logits(row.group) for row in started]))
        for row in started:
            if row.group.num_started == row.group.num_rows:
                row.group.first_logits = None
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _packed_logits(self, num_rows: int, prefilled: list[GroupState]) -> Tensor:
        layout, ids, positions = self._layouts.build(self._active, num_rows, prefilled)
        wanted = list(range(num_rows)) + [segment.start + segment.slot.length - 1 for segment in layout.segments]
        wanted += [0] * (self._layouts.padding.padded(len(wanted)) - len(wanted))
        with packed_attention(self.model):
            output = self.model(
                input_ids=ids,
                position_ids=positions,
                use_cache=False,
                logits_to_keep=torch.tensor(wanted, device=ids.device),
                rollmill_layout=layout,
            )
        return torch.as_tensor(output.logits[0])

    def _sample(self, logits: Tensor) -> list[tuple[int, str]]:
        """Append one token to every row; return the rows that end with it, and why."""
        active = self._active
        drawn = draw(logits, active.uniforms(), active.settings, active.recent_tokens())
        active.append(drawn)
        self.num_tokens_generated += len(active)
        invalid = ~drawn.valid.cpu().numpy()
        stopped = np.isin(drawn.token_ids.cpu().numpy(), self._stop_array)
        ended = np.flatnonzero(invalid | stopped | active.at_limit())
        reason = np.where(invalid, FINISH_ERROR, np.where(stopped, FINISH_STOP, FINISH_LENGTH))
        return [(int(index), str(reason[index])) for index in ended]

    def _retire(self, done: list[tuple[int, str]]) -> list[FinishedGroup]:
        """Take finished rows out of the batch; return the groups that are complete by that."""
        finished = []
        for index, reason in done:
            row = self._active.rows[index]
            completion = self._active.completion(index, reason)
            if reason == FINISH_ERROR:
                place = len(completion.token_ids)
                completion = _error(f"the model's logits were not finite at response token {place}")
                self._forget_values(index, row.group)
            row.group.completions[row.sample_index] = completion
            if row.group.is_finished:
                assert row.group.slot is not None
                self._prefixes.remove(row.group.slot)
                finished.append(row.group.finished())
        if done:
            self.num_rows_finished += len(done)
            self._active.remove([index for index, _ in done])
        return finished

    def _forget_values(self, index: int, group: GroupState) -> None:
        self._suffix.clear(index)
        if group.slot is not None and len(group.completions) == group.num_rows - 1:
            group.slot.store.clear(group.slot.index)


def _first_logits(group: GroupState) -> Tensor:
    assert group.first_logits is not None
    return group.first_logits


def _error(message: str) -> Completion:
    return Completion(token_ids=[], logprobs=[], finish_reason=FINISH_ERROR, error=message)
