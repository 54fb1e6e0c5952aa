"""From a trainer's batch to G answers a prompt, in process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rollmill.storage.results import RawRollout, pad_rows
from rollmill.tasks.generation.batches import batch_prompts
from rollmill.tasks.generation.requests import fresh_seeds
from rollmill.tasks.generation.scheduler import InferenceScheduler
from rollmill.tasks.generation.seeds import row_seed
from rollmill.tasks.generation.types import (
    FINISH_ERROR,
    LOGPROB_MODE_PROCESSED,
    Completion,
    PromptGroup,
    SamplingParams,
)
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.prompt import Prompt
from rollmill.tasks.prompts.rendering import PromptRenderer, RenderedPrompt


class RolloutGenerator:
    """Answers each prompt of a batch `group_size` times.

    With a `seed`, an answer is a function of (seed, prompt_id, sample_index) and the weights; without one, every call
    draws a fresh seed from torch's default generator. `policy_version` goes into every rollout; a trainer that shares
    the model sets it when its weights change. Raises ValueError for a setting out of bounds.
    """

    def __init__(
        self,
        scheduler: InferenceScheduler,
        tokenizer: PreTrainedTokenizerBase,
        max_tokens: int = 1024,
        group_size: int = 8,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        frequency_penalty: float = 0.0,
        rep_window: int = 64,
        *,
        seed: int | None = None,
        policy_version: int = 0,
        system_prompt: str | None = None,
    ) -> None:
        if group_size < 1:
            raise ValueError(f"group_size must be at least 1, got {group_size}")
        self.policy_version = policy_version
        self.group_size = group_size
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._renderer = PromptRenderer(tokenizer, PromptsConfig(source="a batch", system_prompt=system_prompt))
        self._seed = seed
        self._sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            frequency_penalty=frequency_penalty,
            rep_window=rep_window,
        )

    def generate(self, batch: Mapping[str, Any]) -> RawRollout:
        """Answer a batch (see `batch_prompts` for what it may hold).

        Strings and messages go through the tokenizer's chat template when it has one; ids are used as they are. A
        prompt that cannot be answered has G empty rows with finish_reason error.
        """
        prompts = batch_prompts(batch)
        rendered = [self._renderer.render(prompt) for prompt in prompts]
        return self._padded(prompts, rendered, self._answer(rendered))

    def _answer(self, rendered: Sequence[RenderedPrompt]) -> list[list[Completion]]:
        job_seed = fresh_seeds(1)[0] if self._seed is None else self._seed
        groups = (
            PromptGroup(
                key=str(place),
                input_ids=prompt.input_ids,
                seeds=[row_seed(job_seed, prompt.prompt_id, sample) for sample in range(self.group_size)],
                sampling=self._sampling,
            )
            for place, prompt in enumerate(rendered)
            if prompt.error is None
        )
        finished = {group.key: group.completions for group in self._scheduler.stream(groups)}
        return [
            finished.get(str(place)) or [_failed(prompt.error)] * self.group_size
            for place, prompt in enumerate(rendered)
        ]

    def _padded(
        self, prompts: Sequence[Prompt], rendered: Sequence[RenderedPrompt], answers: list[list[Completion]]
    ) -> RawRollout:
        pad_id = self._tokenizer.pad_token_id or 0
        rows = [completion for group in answers for completion in group]
        prompt_ids, prompt_mask = pad_rows([prompt.input_ids for prompt in rendered], pad_id=pad_id, side="left")
        responses, mask = pad_rows([row.token_ids for row in rows], pad_id=pad_id, side="right")
        logprobs = torch.zeros(mask.shape, dtype=torch.float32)
        logprobs[mask] = torch.tensor([value for row in rows for value in row.logprobs], dtype=torch.float32)
        shape = (len(answers), self.group_size, mask.shape[1])
        texts = self._tokenizer.batch_decode([row.token_ids for row in rows], skip_special_tokens=True)
        names = dict.fromkeys(name for prompt in prompts for name in prompt.columns)
        return RawRollout(
            prompts=prompt_ids,
            prompt_mask=prompt_mask,
            responses=responses.view(shape),
            response_mask=mask.view(shape),
            logprobs_old=logprobs.view(shape),
            prompt_texts=[prompt.text for prompt in rendered],
            response_texts=_nested(texts, self.group_size),
            prompt_ids=[prompt.prompt_id for prompt in rendered],
            finish_reasons=_nested([row.finish_reason for row in rows], self.group_size),
            policy_version=self.policy_version,
            logprob_mode=LOGPROB_MODE_PROCESSED,
            columns={name: [prompt.columns[name] for prompt in prompts] for name in names},
        )


def _nested(values: list[str], group_size: int) -> list[list[str]]:
    return [values[start : start + group_size] for start in range(0, len(values), group_size)]


def _failed(error: str | None) -> Completion:
    return Completion(token_ids=[], logprobs=[], finish_reason=FINISH_ERROR, error=error)
