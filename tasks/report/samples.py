"""The texts in the page: which prompts are shown with their answers, and how much of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rollmill.storage.concurrency import at_once
from rollmill.storage.log import DatasetFile
from rollmill.storage.objects import Objects
from rollmill.storage.parquet import read_committed
from rollmill.tasks.report.answers import PromptResult
from rollmill.tasks.report.ranking import hardest_first
from rollmill.tasks.report.segments import Segment, SpecialTokens, cut, fair_limit

MAX_ANSWERS = 2000
"""Answers in a page unless it is asked for fewer or more."""

MAX_CHARACTERS = 4_000_000
"""Characters of prompts, answers and metadata in a page, however many answers it shows."""

_COLUMNS = ["prompt_id", "sample_index", "prompt_text", "response_text", "prompt_token_ids", "response_token_ids",
            "logprobs", "finish_reason", "error", "reward", "reward_status", "reward_error", "reward_parts",
            "metadata"]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The shown groups as JSON values, in the order of the version, and how many answers are cut short."""

    groups: list[dict[str, Any]]
    answers: int
    cut_texts: int


def choose(prompts: Sequence[PromptResult], max_answers: int, first: Sequence[PromptResult] = ()) -> list[PromptResult]:
    """Return which prompts are shown, in their order, with at most so many answers, but one prompt at least.

    When not all fit, `first` go before others, then up to a third of what is left are prompts with failed answers, and
    the rest are spread evenly from the hardest to the easiest.
    """
    if sum(prompt.answers for prompt in prompts) <= max_answers:
        return list(prompts)
    places = {id(prompt): place for place, prompt in enumerate(prompts)}
    chosen: dict[int, PromptResult] = {}

    def take(candidates: Sequence[PromptResult], most: int) -> None:
        left = min(most, max_answers - sum(prompt.answers for prompt in chosen.values()))
        for prompt in candidates:
            if id(prompt) not in chosen and (prompt.answers <= left or not chosen):
                chosen[id(prompt)] = prompt
                left -= prompt.answers

    take(first, max_answers)
    failed = [prompt for prompt in prompts if prompt.failed]
    take(failed, (max_answers - sum(prompt.answers for prompt in chosen.values())) // 3)
    take(spread(hardest_first(prompts)), max_answers)
    return sorted(chosen.values(), key=lambda prompt: places[id(prompt)])


def spread(prompts: Sequence[PromptResult]) -> list[PromptResult]:
    """Return the prompts in an order whose every beginning is spread over all of them: both ends, then the middle, …

    Place i comes where the bits of i, read backwards, put it.
    """
    bits = max(1, (len(prompts) - 1).bit_length())
    order = sorted(range(len(prompts)), key=lambda place: int(f"{place:0{bits}b}"[::-1], 2))
    return [*prompts[-1:], *(prompts[place] for place in order if place != len(prompts) - 1)]


def read_samples(
    objects: Objects, chosen: Sequence[PromptResult], tokens: SpecialTokens, max_characters: int = MAX_CHARACTERS
) -> Samples:
    """Read the chosen groups' texts from their files, and cut all of them alike where they are too long together."""
    wanted: dict[str, list[PromptResult]] = {}
    for prompt in chosen:
        wanted.setdefault(prompt.file.file, []).append(prompt)
    tables = at_once(lambda prompts: _rows_of(objects, prompts), wanted.values())
    groups = [
        (prompt, rows)
        for prompts, table in zip(wanted.values(), tables, strict=True)
        for prompt, rows in _groups(prompts, table)
    ]
    limit = fair_limit([length for _, rows in groups for length in _lengths(rows)], max_characters)
    return Samples(
        groups=[_group(prompt, rows, tokens, limit) for prompt, rows in groups],
        answers=sum(len(rows) for _, rows in groups),
        cut_texts=sum(length > limit for _, rows in groups for length in _lengths(rows)),
    )


def _rows_of(objects: Objects, prompts: Sequence[PromptResult]) -> pa.Table:
    file: DatasetFile = prompts[0].file
    table = read_committed(objects, file, _COLUMNS)
    return table.filter(pc.is_in(table["prompt_id"], pa.array([prompt.prompt_id for prompt in prompts])))


def _groups(prompts: Sequence[PromptResult], table: pa.Table) -> Iterator[tuple[PromptResult, list[dict[str, Any]]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        row["metadata"] = json.dumps(json.loads(row["metadata"]), indent=1, ensure_ascii=False)
        rows.setdefault(row["prompt_id"], []).append(row)
    for prompt in prompts:
        yield prompt, sorted(rows[prompt.prompt_id], key=_rank)


def _rank(row: Mapping[str, Any]) -> tuple[bool, float, int]:
    """Best reward first; what has none comes last."""
    reward = row["reward"]
    return reward is None, 0.0 if reward is None else -reward, row["sample_index"]


def _lengths(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    return [len(rows[0]["prompt_text"]), len(rows[0]["metadata"]), *(len(row["response_text"]) for row in rows)]


def _group(prompt: PromptResult, rows: Sequence[dict[str, Any]], tokens: SpecialTokens, limit: int) -> dict[str, Any]:
    text = tokens.of_prompt(rows[0]["prompt_text"], rows[0]["prompt_token_ids"])
    return {
        "run": prompt.run_id,
        "id": prompt.prompt_id,
        "scored": prompt.scored,
        "passed": prompt.passed,
        "mean": prompt.mean_reward,
        "prompt": _shown(text, limit),
        "metadata": _shown([Segment(rows[0]["metadata"])], limit),
        "answers": [_answer(row, tokens, limit) for row in rows],
    }


def _answer(row: Mapping[str, Any], tokens: SpecialTokens, limit: int) -> dict[str, Any]:
    num_tokens = len(row["logprobs"])
    return {
        "sample": row["sample_index"],
        "reward": row["reward"],
        "status": row["reward_status"],
        "finish": row["finish_reason"],
        "why": row["error"] or row["reward_error"],
        "tokens": num_tokens,
        "logprob": round(sum(row["logprobs"]) / num_tokens, 4) if num_tokens else None,
        "parts": [[part["name"], _finite(part["value"])] for part in row["reward_parts"] or ()],
        "text": _shown(tokens.of_answer(row["response_text"], row["response_token_ids"]), limit),
    }


def _finite(value: float | None) -> float | None:
    """Return what JSON can say of a part's value."""
    return value if value is not None and math.isfinite(value) else None


def _shown(segments: Sequence[Segment], limit: int) -> list[str | list[str] | int]:
    return [segment.to_json() for segment in cut(segments, limit)]
