"""Turning plain lists of prompts into groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import torch

from rollmill.tasks.generation.types import PromptGroup, SamplingParams


def fresh_seeds(count: int) -> list[int]:
    """Return seeds from torch's default generator, so that `torch.manual_seed` makes them repeatable."""
    return [int(seed) for seed in torch.randint(2**62, (count,)).tolist()]


def group_equal_neighbours(
    prompts: Sequence[Sequence[int]], limits: Sequence[int], seeds: Sequence[int], sampling: SamplingParams
) -> list[PromptGroup]:
    """Return one group per run of equal prompts; its key is the place of its first."""
    groups, start = [], 0
    for (ids, limit), members in groupby(zip(map(tuple, prompts), limits, strict=True)):
        stop = start + sum(1 for _ in members)
        params = replace(sampling, max_tokens=limit)
        groups.append(PromptGroup(key=str(start), input_ids=list(ids), seeds=list(seeds[start:stop]), sampling=params))
        start = stop
    return groups


def reason_to_refuse(input_ids: Sequence[int], max_seq_len: int, vocab_size: int) -> str | None:
    """Say why a prompt cannot be answered, or nothing when it can."""
    length = len(input_ids)
    if not length:
        return "the prompt has no tokens"
    if length >= max_seq_len:
        return f"the prompt has {length} tokens, which leaves no room for an answer within {max_seq_len}"
    strange = next((token for token in input_ids if not 0 <= token < vocab_size), None)
    return None if strange is None else f"token id {strange} is outside the model's vocabulary of {vocab_size}"
