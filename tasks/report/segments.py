"""Text in pieces: what is plain, what is a special token, and where something was left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmill.errors import InputError, PolicyError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of text; `left_out` is how many characters are not shown in its place."""

    text: str
    is_special: bool = False
    left_out: int = 0

    def to_json(self) -> str | list[str] | int:
        """Return plain text as a string, a special token as a list of one, and a gap as a number."""
        if self.left_out:
            return self.left_out
        return [self.text] if self.is_special else self.text


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Tells special tokens from text by a policy's tokenizer; without one, `absent` says why there is none."""

    tokenizer: PreTrainedTokenizerBase | None
    absent: str | None = None

    def of_prompt(self, text: str, token_ids: Sequence[int]) -> list[Segment]:
        """Return a prompt's text, which holds its special tokens."""
        found = self._segments(token_ids)
        return found if "".join(segment.text for segment in found) == text else [Segment(text)]

    def of_answer(self, text: str, token_ids: Sequence[int]) -> list[Segment]:
        """Return an answer's text, from which its special tokens were taken, with them."""
        found = self._segments(token_ids)
        plain = "".join(segment.text for segment in found if not segment.is_special)
        return found if plain == text else [Segment(text)]

    def _segments(self, token_ids: Sequence[int]) -> list[Segment]:
        if self.tokenizer is None:
            return []
        special = set(self.tokenizer.all_special_ids)
        runs = groupby(token_ids, key=special.__contains__)
        return [
            Segment(str(self.tokenizer.decode(ids, skip_special_tokens=False)), is_special)
            for is_special, run in runs
            for ids in ([[token_id] for token_id in run] if is_special else [list(run)])
        ]


def find_special_tokens(policy: dict[str, Any] | None, fingerprint: str | None, name: str | None) -> SpecialTokens:
    """Return the special tokens of a stored policy, as far as its tokenizer is on this machine.

    `policy` and the tokenizer's `fingerprint` are as the files say. Nothing is fetched, unless `name` says where the
    tokenizer is. Raises PolicyError when there is none, and InputError when it is not the run's.
    """
    model = name or (policy or {}).get("model")
    if model is None or fingerprint is None:
        return SpecialTokens(None, "the files do not agree on one policy")
    if name is None and not _is_here(model):
        return SpecialTokens(None, f"the tokenizer of {model} is not a folder on this machine; --tokenizer names it")
    from rollmill.tasks.generation.policies import load_tokenizer  # transformers takes seconds to import
    from rollmill.tasks.prompts.rendering import tokenizer_fingerprint

    try:
        tokenizer = load_tokenizer(model)
    except PolicyError as error:
        if name is not None:
            raise
        return SpecialTokens(None, str(error))
    if tokenizer_fingerprint(tokenizer) == fingerprint:
        return SpecialTokens(tokenizer)
    if name is not None:
        raise InputError(f"--tokenizer {name} is another tokenizer than the one that the answers were sampled with")
    return SpecialTokens(None, f"{model} has another tokenizer now than when the answers were sampled")


def _is_here(model: str) -> bool:
    from rollmill.tasks.generation.policy_folders import BUNDLED

    return model in BUNDLED or ("://" not in model and Path(model).expanduser().is_dir())


def cut(segments: Sequence[Segment], most: int) -> list[Segment]:
    """Return at most so many characters: two thirds from the beginning, the rest from the end, and a gap between."""
    total = sum(len(segment.text) for segment in segments)
    if total <= most:
        return list(segments)
    beginning = most * 2 // 3
    end = list(_first(reversed(segments), most - beginning, from_end=True))
    return [*_first(segments, beginning), Segment("", left_out=total - most), *reversed(end)]


def _first(segments: Iterable[Segment], most: int, from_end: bool = False) -> Iterator[Segment]:
    for segment in segments:
        if most <= 0:
            return
        text = segment.text[-most:] if from_end else segment.text[:most]
        yield Segment(text, segment.is_special)
        most -= len(text)


def fair_limit(lengths: Sequence[int], most: int) -> int:
    """Return the greatest limit on each length with which all of them together are at most so many."""
    left = most
    for place, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - place)
        if length > share:
            return share
        left -= length
    return max(lengths, default=0)
