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
