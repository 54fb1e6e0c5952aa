"""Why rewards failed, counted: reasons that differ only in what they quote or number count as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MAX_REASONS = 20
"""Most reasons that are told apart; rarer ones are counted together."""

OTHER_REASONS = "other reasons"
_MAX_CHARACTERS = 200
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_NUMBERED = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


def reason_kind(reason: str) -> str:
    """Return what a reason has in common with others like it: no quoted text, no numbers, a bounded length.

    >>> reason_kind("math: ValueError: cannot read '12a' at line 3")
    "math: ValueError: cannot read '…' at line #"
    """
    return _NUMBERED.sub("#", _QUOTED.sub("'…'", reason[:_MAX_CHARACTERS]))


def count_reasons(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Add up (reason, times) by kind, and return times by one example of each kind, commonest first.

    Of equally common ones the first is kept first, so that the same rows always give the same counts.

    >>> count_reasons([("no column 7", 1), ("timed out", 3), ("no column 9", 1)])
    {'timed out': 3, 'no column 7': 2}
    """
    examples: dict[str, str] = {OTHER_REASONS: OTHER_REASONS}
    times: dict[str, int] = {}
    for reason, count in counts:
        kind = reason_kind(reason)
        examples.setdefault(kind, reason[:_MAX_CHARACTERS])
        times[kind] = times.get(kind, 0) + count
    other = times.pop(OTHER_REASONS, 0)
    ranked = sorted(times.items(), key=lambda item: -item[1])
    kept = {examples[kind]: count for kind, count in ranked[:MAX_REASONS]}
    other += sum(count for _, count in ranked[MAX_REASONS:])
    return {**kept, OTHER_REASONS: other} if other else kept


def commonest(reasons: Mapping[str, int], count: int = 3) -> list[str]:
    """Return the commonest of counted reasons as `12 × reason`."""
    ranked = sorted(reasons.items(), key=lambda item: -item[1])
    return [f"{times} × {reason}" for reason, times in ranked[:count]]
