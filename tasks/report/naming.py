"""Short names for prompts: what tells them apart, not the instructions that all of them begin and end with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

_MAX_CHARACTERS = 160


def name_groups(groups: Sequence[dict[str, Any]]) -> None:
    """Give every shown group a `name` of one line; one without a prompt text has its id."""
    names = distinct([" ".join(_plain(group["prompt"]).split()) for group in groups])
    for group, name in zip(groups, names, strict=True):
        group["name"] = name or group["id"]


def distinct(texts: Sequence[str]) -> list[str]:
    """Return the texts without the words that all different ones begin and end with, cut at a bounded length.

    >>> distinct(["Add these: 1 + 2 =", "Add these: 3 + 4 =", ""])
    ['1 + 2', '3 + 4', '']
    """
    different = [text.split(" ") for text in set(texts) if text]
    beginning = _shared(different)
    end = _shared([words[beginning:][::-1] for words in different])
    words = [text.split(" ") for text in texts]
    return [_cut(" ".join(each[beginning : len(each) - end]) or " ".join(each)) for each in words]


def _shared(lists: Sequence[Sequence[str]]) -> int:
    """Return how many words all lists begin with; 0 for a single list, which shares them with none."""
    alike = takewhile(lambda words: len(set(words)) == 1, zip(*lists, strict=False))
    return len(list(alike)) if len(lists) > 1 else 0


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


def _plain(pieces: Sequence[str | list[str] | int]) -> str:
    return " ".join(piece for piece in pieces if isinstance(piece, str))
