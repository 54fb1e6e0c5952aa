"""Work for engines, and what a scheduler alone makes of it."""

from __future__ import annotations

from collections.abc import Sequence

from builders import byte_tokenizer, tiny_model

from rollmill.tasks.generation.packed_weights import pack_weights
from rollmill.tasks.generation.scheduler import InferenceScheduler
from rollmill.tasks.generation.seeds import row_seed
from rollmill.tasks.generation.types import FinishedGroup, PromptGroup, SamplingParams


def groups(count: int, max_tokens: int = 12, first: int = 0) -> list[PromptGroup]:
    """Return prompts of three tokens with two answers each, numbered from `first` on."""
    return [
        PromptGroup(
            key=f"prompt {number}",
            input_ids=[1 + number % 200, 2, 3],
            seeds=[row_seed(0, str(number), sample) for sample in range(2)],
            sampling=SamplingParams(max_tokens=max_tokens, temperature=3.0),
        )
        for number in range(first, first + count)
    ]


def expected(asked: Sequence[PromptGroup]) -> list[FinishedGroup]:
    """Return what the tiny policy, packed as engines pack it, answers in the order of the prompts."""
    model = tiny_model("llama")
    pack_weights(model)
    scheduler = InferenceScheduler(model, byte_tokenizer(), max_batch_size=8, max_seq_len=512)
    finished = {group.key: group for group in scheduler.stream(asked)}
    return [finished[group.key] for group in asked]
