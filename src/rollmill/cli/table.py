"""Rows of values as columns of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows that have the same keys, numbers to the right; a terminal's width is not looked at."""
    names = list(rows[0])
    texts = [[_text(row[name]) for name in names] for row in rows]
    widths = [max(len(name), *(len(text[place]) for text in texts)) for place, name in enumerate(names)]
    numeric = [all(isinstance(row[name], int | float | None) for row in rows) for name in names]
    for line in [names, *texts]:
        cells = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
